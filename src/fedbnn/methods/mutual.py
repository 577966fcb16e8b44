"""The halves that methods share in which a client's own network and a messenger teach each other.

The messenger is a small network of one architecture, which travels and is averaged as in FedAvg; the client's own, of
any architecture, stays at home. Both see every minibatch of local training, and each takes the other as fixed:

    KL_own = KL[p_messenger || p_own],    KL_messenger = KL[p_own || p_messenger],    means over its records

A client's turn trains two networks, each for as many steps as FedAvg's one.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import State, Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.point import PointTraining, point_outputs
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import average
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression import Answer
from fedbnn.models.training import adam


@dataclass(frozen=True)
class Mutual(State):
    """Weights of the client's own network; those of a messenger only where it is what answers."""

    weights: Tensor | None = None
    messenger: Tensor | None = None


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean over records of KL[softmax(teacher) || softmax(student)]; the gradient is the student's alone."""
    wanted = teacher.detach().log_softmax(1)
    return functional.kl_div(student.log_softmax(1), wanted, reduction="batchmean", log_target=True)


@settings
class MutualLearning(PointTraining, Averaging[Mutual]):
    """A client's own network and a messenger, trained side by side."""

    client_state = Mutual
    one_architecture = False

    messenger: str = Field(
        default="",
        description="the architecture of the messenger, by its name; empty: cnn2 for images of 4x4 or more, else mlp",
    )
    messenger_options: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the messenger's model, e.g. hidden"
    )

    @abstractmethod
    def losses(self, own: Tensor, own_kl: Tensor, sent: Tensor, sent_kl: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of the own network and of the messenger, from the cross-entropy and KL of each."""

    def messenger_model(self, shape: tuple[int, ...]) -> ModelSettings:
        """The messenger's architecture for records of this shape."""
        images = len(shape) == 3 and min(shape[1:]) >= 4
        return ModelSettings(self.messenger or ("cnn2" if images else "mlp"), options=self.messenger_options)

    def messenger_network(self, client: Client | Roster) -> FlatNetwork:
        """The messenger: scratch space, but never the same as a client's own network."""
        seen = client.train.x if isinstance(client, Client) else client.alignment
        shape = tuple(seen.shape[1:])
        model = json.dumps(asdict(self.messenger_model(shape)))
        return _scratch(model, shape, client.outputs, client.seed, seen.device)

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        self.messenger_network(client)  # raises where records do not fit it

    def client_init(self, client: Client) -> Mutual:
        return Mutual(client.initial_weights())

    def client_update(
        self, state: Mutual, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Mutual]:
        assert state.weights is not None
        own, sent = client.network, self.messenger_network(client)
        starts = (own, state.weights), (sent, message.arrays["weights"])
        optimisers = [adam(one, start, self.learning_rate, self.weight_decay) for one, start in starts]
        losses = torch.zeros(2)
        for batch in local_batches(client, client.training.passes(round_number), rng):
            own.gradient.zero_()
            sent.gradient.zero_()
            mine, its = own(batch.x), sent(batch.x)
            each = self.losses(batch.loss(mine), divergence(its, mine), batch.loss(its), divergence(mine, its))
            losses = torch.stack(each)
            losses.sum().backward()
            for optimiser in optimisers:
                optimiser.step()
        first, second = (float(one) for one in losses.detach())
        reply = self.upload(sent.weights.clone(), client)
        return Update(Mutual(own.weights.clone()), reply, {"loss": first, "messenger_loss": second})

    def predict(self, state: Mutual, client: Client, x: Tensor, rng: Stream) -> Answer:
        if state.weights is not None:
            return point_outputs(state.weights, client, x)
        assert state.messenger is not None
        return average(self.messenger_network(client), iter([state.messenger]), x)

    def scored(self, state: Mutual, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Mutual]:
        return {"personal": state, "global": Mutual(messenger=message.arrays["weights"])}

    def server_init(self, roster: Roster) -> Global:
        if len({model.body_key for model in roster.models}) > 1:
            raise UserError(
                f"method '{self.name}' sends one messenger to all, which must see the same inputs everywhere: give all "
                "models one body, or none"
            )
        return Global(self.initial(roster))

    def initial(self, roster: Roster) -> Tensor:
        shape = tuple(roster.alignment.shape[1:])
        model, seed = self.messenger_model(shape), Stream((roster.seed, "messenger")).seed
        return FlatNetwork(lambda: build(model, shape, roster.outputs), seed).weights.to(roster.alignment.device)

    def initial_size(self, roster: Roster) -> int:
        return self.messenger_network(roster).size


@lru_cache(maxsize=4)
def _scratch(model: str, shape: tuple[int, ...], outputs: int, seed: int, device: torch.device) -> FlatNetwork:
    settings = TypeAdapter(ModelSettings).validate_json(model)
    return FlatNetwork(lambda: build(settings, shape, outputs), Stream((seed, "scratch")).seed, device)
