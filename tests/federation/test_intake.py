"""Replies of the right form that spoil a server are found, and nobody else's."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedbnn.federation.intake import joined
from fedbnn.federation.message import MOST_SENT, Message
from fedbnn.federation.method import State
from fedbnn.federation.parties import Roster
from fedbnn.federation.server import Server
from fedbnn.methods import FedAvg
from fedbnn.models.architectures import ModelSettings

ROSTER = Roster(("a", "b", "c"), 2, torch.zeros(3, 4), (ModelSettings("mlp"),) * 3, rounds=2, seed=0)


@dataclass(frozen=True)
class Sum(State):
    total: torch.Tensor


class Adding(FedAvg):
    """Sends the sum of what came, and its root fails for a negative one."""

    name = "adding"
    server_state = Sum

    def server_init(self, roster: Roster) -> Any:
        return Sum(torch.zeros(1))

    def server_update(self, state: Any, replies: Any, roster: Roster, rng: Any) -> Any:
        return Sum(sum((reply.arrays["x"] for reply in replies.values()), torch.zeros(1)).sqrt())

    def broadcast(self, state: Any, client: int) -> Message:
        return Message({"x": state.total})


def joined_with(*values: float) -> tuple[Any, list[int]]:
    return joined(
        Server(Adding(), ROSTER), {n: Message({"x": torch.tensor([value])}) for n, value in enumerate(values)}
    )


@pytest.mark.parametrize(
    ("values", "spoilt", "total"),
    [
        ((1.0, 4.0, 4.0), [], 3.0),
        ((1.0, -9.0, 3.0), [1], 2.0),  # a sum below nothing
        ((9.0, 4.0 * MOST_SENT**2, 0.0), [1], 3.0),  # more than a site takes
        ((-1.0, 4.0, -5.0), [0, 2], 2.0),
        ((-1.0,), [0], None),
        ((4.0 * MOST_SENT**2,) * 3, [0, 1, 2], None),  # all of them, more than a site takes
    ],
)
def test_who_spoils_a_round_is_left_out(values: tuple[float, ...], spoilt: list[int], total: float | None) -> None:
    state, found = joined_with(*values)
    assert found == spoilt
    assert (None if state is None else float(state.total)) == total


def test_a_round_that_everybody_spoils_is_held_again() -> None:
    """Weights that a site may upload, of which a method makes what no site would take; the server must outlive it."""

    class Amplified(FedAvg):
        name = "amplified"

        def server_update(self, state: Any, replies: Any, roster: Roster, rng: Any) -> Any:
            return replace(state, weights=super().server_update(state, replies, roster, rng).weights * 1e4)

    server = Server(Amplified(), ROSTER)
    size = ROSTER.network(0).size
    replies = {n: Message({"weights": torch.full((size,), 5e3), "records": torch.ones(1)}) for n in range(3)}
    assert not any(server.refusal(client, reply) for client, reply in replies.items())
    assert joined(server, replies) == (None, [0, 1, 2])
    assert server.round_number == -1


def test_a_mistake_that_is_nobodys_is_told() -> None:
    class Broken(Adding):
        name = "broken"

        def server_update(self, state: Any, replies: Any, roster: Roster, rng: Any) -> Any:
            raise TypeError("a method's own mistake")

    with pytest.raises(TypeError, match="own mistake"):
        joined(Server(Broken(), ROSTER), {n: Message({"x": torch.ones(1)}) for n in range(3)})
