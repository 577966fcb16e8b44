"""The halves that methods share whose clients carry a vector from round to round, of which the server needs the mean.

The server keeps what each client sent last, clients x weights, and takes means over that. Sums of changes, as papers
write them, are the same numbers, but one reply that is lost on its way would be missing in them for ever, and what a
client that is set aside had added could not be taken out again. Every client counts alike, as in these papers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, TypeVar

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message, Numbers, UploadSpec
from fedbnn.federation.method import Method, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Global, refuse_mixed
from fedbnn.methods.point import Point, point_outputs
from fedbnn.models.regression import Answer


@dataclass(frozen=True)
class Carried(Point):
    """A client's weights after its last turn, and the vector that it carries on, of the same length."""

    carried: Tensor

    @classmethod
    def of(cls, client: Client) -> Self:
        """At the start: the model's own first weights, and a vector of zeros."""
        weights = client.initial_weights()
        return cls(weights, torch.zeros_like(weights))


@dataclass(frozen=True)
class Remembered(Global):
    """The server's model, and what each client sent last."""

    sent: Tensor  # clients x weights; zeros for a client that has sent nothing yet
    heard: Tensor  # clients: whether it has sent anything that is used

    @cached_property
    def mean_of_all(self) -> Tensor:
        """The mean over all clients, those that have sent nothing as zeros. Made once for all that are sent it."""
        return self.sent.mean(0)

    @cached_property
    def mean_of_heard(self) -> Tensor:
        """The mean over those that have sent something, who are at least one."""
        return self.sent[self.heard].mean(0)

    def with_replies(self, replies: Mapping[int, Message], name: str) -> Self:
        """With the arrays of this name in place of what these clients sent before."""
        sent, heard = self.sent.clone(), self.heard.clone()
        for client, reply in replies.items():
            sent[client], heard[client] = reply.arrays[name], True
        return replace(self, sent=sent, heard=heard)

    def without(self, client: int) -> Self:
        sent, heard = self.sent.clone(), self.heard.clone()
        sent[client], heard[client] = 0.0, False
        return replace(self, sent=sent, heard=heard)


def plain_mean(replies: Mapping[int, Message], name: str = "weights") -> Tensor:
    """The mean over these clients, at least one, each counting alike."""
    return torch.stack([reply.arrays[name] for reply in replies.values()]).mean(0)


P = TypeVar("P", bound=Point)  # the client's state


class Remembering(Method[P, Remembered]):
    """A server that remembers its clients.

    Unless a method says more, clients send one vector, and the server's model is the mean of what each sent last.
    """

    server_state = Remembered
    one_architecture = True
    regression = True

    def predict(self, state: P, client: Client, x: Tensor, rng: Stream) -> Answer:
        return point_outputs(state.weights, client, x)

    def scored(self, state: P, client: Client, message: Message, rng: Stream) -> Mapping[Variant, P]:
        """The server's model, and the client's after its last local training."""
        return {"global": replace(state, weights=message.arrays["weights"]), "fine_tuned": state}

    def server_init(self, roster: Roster) -> Remembered:
        refuse_mixed(roster, self.name)
        weights = roster.initial_weights(0)
        return Remembered(
            weights, weights.new_zeros(roster.clients, len(weights)), torch.zeros(roster.clients, dtype=torch.bool)
        )

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {"weights": Numbers((roster.network(client).size,))}

    def server_update(
        self, state: Remembered, replies: Mapping[int, Message], roster: Roster, rng: Stream
    ) -> Remembered:
        if not replies:
            return state
        now = state.with_replies(replies, "weights")
        return replace(now, weights=now.mean_of_heard)

    def without(self, state: Remembered, client: int) -> Remembered:
        return state.without(client)

    def broadcast(self, state: Remembered, client: int) -> Message:
        return Message({"weights": state.weights})
