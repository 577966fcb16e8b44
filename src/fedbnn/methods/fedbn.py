"""FedBN (Li, Jiang, Zhang, Kamp, Dou 2021): every client keeps its own normalisation layers, all else is averaged.

A network's weights are those of its normalisation layers, s_i, and all others, u. A round of client i, which has kept
its s_i and receives u:

    (u_i, s_i) <- E local epochs on f_i from (u, s_i);    u <- sum_i (n_i / sum n) u_i.

It sends u_i alone: what is particular about its inputs, their scale and shift, stays with it. Were nothing a
normalisation layer's, this would be FedAvg.

The paper is about batch normalisation, whose running statistics stay at the client as well. Models here have none, as
they are no weights; normalisation layers are those of GroupNorm, LayerNorm, InstanceNorm and RMSNorm, and BatchNorm
without running statistics. Of the built-in models the transformer has them; a model without is refused. Scored are the
newest u with the client's s_i (personal) and the client's after its last local training (fine-tuned). Clients use Adam,
begun anew in each round.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.models.network import FlatNetwork

_NORMALISATIONS = (
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


def shared_places(network: FlatNetwork) -> Tensor:
    """Which of the weights are no normalisation layer's, as a mask."""
    own = [name for name, layer in network.module.named_modules() if isinstance(layer, _NORMALISATIONS)]
    shared = torch.ones(network.size, dtype=torch.bool, device=network.weights.device)
    for name, span in network.spans.items():
        shared[span] = name.rpartition(".")[0] not in own
    return shared


@settings
class FedBN(PointModel, PointTraining, Averaging[Point]):
    """Federated averaging around normalisation layers that stay at their clients."""

    name = "fedbn"
    summary = "the average of all weights but those of normalisation layers, which stay at their clients"
    regression = True

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        shared = self.shared(client.network)
        start = self.merged(state, client, message)
        weights, loss = self.train(start, client, client.training.passes(round_number), rng)
        moved = (weights - start).where(shared, torch.zeros(()))
        info = {"loss": loss, "drift": float(moved.norm()), "own_drift": float((weights - start - moved).norm())}
        return Update(Point(weights), self.upload(weights[shared], client), info)

    def shared(self, network: FlatNetwork) -> Tensor:
        """Which weights are averaged."""
        return shared_places(network)

    def merged(self, state: Point, client: Client, message: Message) -> Tensor:
        """The server's weights around the client's own."""
        return state.weights.masked_scatter(self.shared(client.network), message.arrays["weights"])

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"personal": Point(self.merged(state, client, message)), "fine_tuned": state}

    def server_init(self, roster: Roster) -> Global:
        found = super().server_init(roster)  # of one architecture
        if len(found.weights) in (0, roster.network(0).size):
            every = "trains nothing else" if len(found.weights) == 0 else "has none that are trained"
            raise UserError(
                f"method '{self.name}' leaves normalisation layers at the clients and averages the rest, and model "
                f"'{roster.models[0].name}' {every}: choose the transformer or a model of your own with "
                "torch.nn.GroupNorm or LayerNorm, or method 'fedavg'"
            )
        return found

    def initial(self, roster: Roster) -> Tensor:
        weights = roster.initial_weights(0)
        return weights[self.shared(roster.network(0)).to(weights.device)]

    def initial_size(self, roster: Roster) -> int:
        return int(self.shared(roster.network(0)).sum())
