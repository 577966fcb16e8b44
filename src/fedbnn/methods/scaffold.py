"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020): control variates against client drift.

Client i takes K steps from the server's x, each corrected by what it knows of its own and of everybody's gradient,

    y <- y - rate (g_i(y) - c_i + c),    then    c_i <- c_i - c + (x - y) / (K rate)          (option II)

which makes c_i the mean of the g_i that it met. The server, with S those who replied and N all clients:

    x <- x + server_rate 1/|S| sum_{i in S} (y_i - x),    c = 1/N sum_{i = 1..N} c_i,    c_i = 0 before its first turn.

Where all c_i are zero and stay so this is FedAvg with plain local steps. With control variates the optimum of the mean
loss is where it comes to rest, however different clients are and however many local steps they take; FedAvg rests
elsewhere.

Scored are x (global) and each client's y (fine-tuned). Local steps are plain gradient steps, as a control variate
corrects a gradient and not what Adam makes of it; their number is that of FedAvg's. Clients send c_i itself instead of
its change: the same number of bytes, and a reply that is lost does no lasting harm.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.rehearsal import local_batches
from fedbnn.methods.remembered import Carried, Remembered, Remembering, plain_mean
from fedbnn.models.training import descend


def new_control(own: Tensor, everybodys: Tensor, x: Tensor, y: Tensor, path: float) -> Tensor:
    """c_i of option II after steps from x to y whose rates add up to `path`; as it was after none."""
    return own - everybodys + (x - y) / path if path > 0 else own.clone()


@settings
class Scaffold(Remembering[Carried]):
    """Federated averaging whose local steps are corrected by control variates."""

    name = "scaffold"
    summary = "FedAvg with local steps corrected by control variates"
    client_state = Carried

    rate: float = Field(default=0.05, gt=0, description="step size of local gradient steps")
    server_rate: float = Field(default=1.0, gt=0, description="how far the server moves towards the clients' mean")

    def client_init(self, client: Client) -> Carried:
        return Carried.of(client)

    def client_update(
        self, state: Carried, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Carried]:
        x, c = message.arrays["weights"], message.arrays["control"]
        batches = local_batches(client, client.training.passes(round_number), rng)
        y, loss, steps = descend(client.network, x, batches, rate=self.rate, slope=c - state.carried)
        control = new_control(state.carried, c, x, y, steps * self.rate)
        info = {"loss": loss, "drift": float((y - x).norm()), "control": float(control.norm())}
        return Update(Carried(y, control), Message({"weights": y, "control": control}), info)

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        size = roster.network(client).size
        return {"weights": Numbers((size,)), "control": (size,)}

    def server_update(
        self, state: Remembered, replies: Mapping[int, Message], roster: Roster, rng: Stream
    ) -> Remembered:
        if not replies:
            return state
        weights = torch.lerp(state.weights, plain_mean(replies), self.server_rate)
        return replace(state.with_replies(replies, "control"), weights=weights)

    def broadcast(self, state: Remembered, client: int) -> Message:
        return Message({"weights": state.weights, "control": state.mean_of_all})
