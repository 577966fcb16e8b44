"""FedRep (Collins, Hassani, Mokhtari, Shakkottai 2021): a shared body under heads that stay at their clients.

A network is a body b (all layers but the last) and a head h (the last layer). A round of client i, which has kept its
h_i and receives b: first the head alone, then the body alone,

    h_i <- epochs on f_i(b, h) from h_i, b fixed;    b_i <- epochs on f_i(b, h_i) from b, h_i fixed.

It sends b_i; the server averages, b <- sum_i (n_i / sum n) b_i. Nothing is known of h_i outside.

Scored is the personal model: the newest body with the client's own head, which is first fitted to that body as at the
start of the next round; in the paper heads are fitted once more before they are tested, too. So a score is the cost of
a round's head epochs. Unlike the paper, both parts are trained by Adam, begun anew each time, and share the round's
local epochs, so that a round costs what it costs in every other method here; the paper has epochs of the body on top.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.models.bayesian_part import names_of
from fedbnn.models.network import FlatNetwork


def body_and_head(network: FlatNetwork, model: str, method: str) -> tuple[slice, slice]:
    """Which weights are the body's and which the head's: the last layer is the one that the module names last."""
    names = names_of("last_layer", network.spans, model)
    start = min(network.spans[name].start for name in names)
    if start == 0:
        raise UserError(
            f"method '{method}' shares all trainable layers but the last, and model '{model}' has only one: give it a "
            "hidden layer that is trained"
        )
    return slice(0, start), slice(start, network.size)


def split(passes: int, body_share: float) -> tuple[int, int]:
    """Epochs of the head and of the body; each has one where there are any."""
    if passes < 2:
        return passes, passes
    body = min(max(round(body_share * passes), 1), passes - 1)
    return passes - body, body


@settings
class FedRep(PointModel, PointTraining, Averaging[Point]):
    """A shared representation, and a last layer for every client."""

    name = "fedrep"
    summary = "a shared body under personal last layers, one architecture"

    learning_rate: float = with_default(PointTraining, "learning_rate", 3e-3)
    body_share: float = Field(
        default=1 / 3,
        gt=0,
        lt=1,
        description="share of a round's local epochs that trains the body, after the head's; each has at least one",
    )

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        body, _ = body_and_head(client.network, client.model.name, self.name)
        shared = message.arrays["weights"]
        _, passes = split(client.training.passes(round_number), self.body_share)
        fitted = self.fit_head(state, client, shared, round_number, rng)
        weights, loss = self.train(fitted, client, passes, rng.child("body"), part=body)
        drift = float((weights[body] - shared).norm())
        return Update(Point(weights), self.upload(weights[body].clone(), client), {"loss": loss, "drift": drift})

    def fit_head(self, state: Point, client: Client, shared: Tensor, round_number: int, rng: Stream) -> Tensor:
        """`shared` as the body with the client's own head, after the head's epochs of a round."""
        _, head = body_and_head(client.network, client.model.name, self.name)
        passes, _ = split(client.training.passes(round_number), self.body_share)
        start = torch.cat([shared, state.weights[head]])
        return self.train(start, client, passes, rng.child("head"), part=head)[0]

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"personal": Point(self.fit_head(state, client, message.arrays["weights"], 1, rng))}

    def initial(self, roster: Roster) -> Tensor:
        return roster.initial_weights(0)[: self.initial_size(roster)].clone()

    def initial_size(self, roster: Roster) -> int:
        body, _ = body_and_head(roster.network(0), roster.models[0].name, self.name)
        return int(body.stop)
