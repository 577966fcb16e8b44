"""FedAvg in pfl-research, with the algorithm, backend and model that its users would take.

    PFL_WORKER_ADDRESSES=... PFL_WORKER_RANK=... python -c "from benchmarks.fedavg.pfl import main; main(FOLDER)"

It runs a process a core, all alike, which talk through torch.distributed. Its batches come in one order always.
"""

from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import HyperParam, NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional

from benchmarks.fedavg import plain


class Net(plain.Net):
    """The network with what pfl asks of one; it is scored in the first round only, whatever its settings."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        self.eval()
        return {"loss": Weighted(functional.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class Rounds(TrainingProcessCallback, HyperParam):
    """How many clients take part: all in the first round, then a share; and when a round may begin."""

    def __init__(self, folder: Path, given: dict[str, Any]) -> None:
        self.folder, self.given = folder, given
        self.clients = given["clients"]
        self.blocks = plain.Blocks()
        self.left = self.blocks.next()

    def value(self) -> int:
        return self.clients

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if central_iteration == 0 and get_ops().distributed.global_rank == 0:
            plain.keep(self.folder, "pfl", model.pytorch_model.parameters())
        self.clients = round(self.given["participation"] * self.given["clients"])
        self.left -= 1
        if self.left == 0:
            self.left = self.blocks.next()
        return self.left == 0, Metrics()


def main(place: str) -> None:
    folder = Path(place)
    given = plain.settings(folder)
    net = Net()
    net.load_state_dict(plain.initial(folder).state_dict())
    model = PyTorchModel(net, torch.optim.Adam, torch.optim.SGD(net.parameters(), lr=1.0))
    x, y = plain.records(folder)
    users = [PyTorchTensorDataset((x[user], y[user])) for user in range(given["clients"])]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(given["clients"])))
    rounds = Rounds(folder, given)
    if not rounds.left:
        return
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9, evaluation_frequency=10**9, train_cohort_size=rounds, val_cohort_size=None
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=given["learning_rate"], local_batch_size=given["batch_size"]
        ),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )
