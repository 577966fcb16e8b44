"""FedBABU (Oh, Kim, Yun 2022): a body that is trained under one head that nobody trains.

All clients start from the same weights. The head (the last layer) stays at its first value h_0; a round trains the body
b (all other layers) alone, and the server averages it,

    b_i <- E local epochs on f_i(b, h_0) from b, h_0 fixed;    b <- sum_i (n_i / sum n) b_i.

Only where a client is scored does it get a head of its own: epochs on f_i(b, h) from h_0, b fixed. Scored are the
newest body with this head (personal) and with h_0 (global). Unlike the paper, clients use Adam, as all methods here do,
and only the head is fitted in the end; the paper also tries the whole network.

FedBABU is not part of fedbnn: it shows a method from outside, whole. From the folder that holds this file,

    fedbnn run --set method=fedbabu:FedBABU --set 'models=[{name="cnn2"}]' --set methods.fedbabu.head_epochs=5
"""

from collections.abc import Mapping

import torch
from pydantic import Field

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global, weighted_mean
from fedbnn.methods.fedrep import body_and_head
from fedbnn.methods.point import Point, PointModel, PointTraining


@settings
class FedBABU(PointModel, PointTraining, Averaging[Point]):
    """A shared body under one head for all."""

    name = "fedbabu"
    summary = "a body averaged under a head that stays as it began, heads fitted when a client is scored"

    head_epochs: int = Field(default=5, ge=0, description="passes over a client's records that fit its head")

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        body, _ = body_and_head(client.network, client.model.name, self.name)
        start, passes = message.arrays["weights"], client.training.passes(round_number)
        weights, loss = self.train(start, client, passes, rng, part=body)
        info = {"loss": loss, "drift": float((weights - start).norm())}
        return Update(Point(weights), self.upload(weights[body].clone(), client), info)

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        _, head = body_and_head(client.network, client.model.name, self.name)
        shared = message.arrays["weights"]
        fitted, _ = self.train(shared, client, self.head_epochs, rng.child("head"), part=head)
        return {"personal": Point(fitted), "global": Point(shared)}

    def initial_size(self, roster: Roster) -> int:
        """The length of what clients send: the body."""
        return int(body_and_head(roster.network(0), roster.models[0].name, self.name)[0].stop)

    def server_init(self, roster: Roster) -> Global:
        self.initial_size(roster)  # refuses a model without a body
        return super().server_init(roster)

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        body = weighted_mean(replies)
        return state if body is None else Global(torch.cat([body, state.weights[len(body) :]]))
