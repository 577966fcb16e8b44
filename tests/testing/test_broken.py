"""A method that breaks the contract is caught by the check that is about it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.engines import ClientFailure, Engine
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, State, Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global, SharedPoint
from fedbnn.methods.point import Point
from fedbnn.testing import (
    check_hostile_replies,
    check_method,
    check_order,
    check_pure,
    check_replies,
    check_resume,
    check_settings,
    check_states,
    check_workers,
)


@settings
class Sound(SharedPoint, Averaging[Point]):
    """FedAvg under another name: what the others spoil."""

    name = "sound"
    summary = "keeps the contract"


@settings
class Drawing(Sound):
    """Draws from no stream of its own: what comes depends on what was drawn before."""

    name = "drawing"

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        update = super().client_update(state, client, message, round_number, rng)
        noise = torch.rand(1, generator=GENERATOR)
        return Update(Point(update.state.weights + noise), update.message, update.info)


GENERATOR = torch.Generator().manual_seed(0)


@settings
class Leftover(Sound):
    """Trains on from whatever lies in the scratch network."""

    name = "leftover"

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        found = Message({"weights": client.network.weights.clone()})
        return super().client_update(state, client, found, round_number, rng)


@settings
class InPlace(Sound):
    """Moves the weights that it was sent."""

    name = "in_place"

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        update = super().client_update(state, client, message, round_number, rng)
        message.arrays["weights"].lerp_(update.state.weights, 0.5)
        return update


@settings
class ServerInPlace(Sound):
    """Adds up in the first reply's memory."""

    name = "server_in_place"

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        if not replies:
            return state
        first, *others = (reply.arrays["weights"] for reply in replies.values())
        for other in others:
            first.add_(other)
        return Global(first / len(replies))


MEMORY: dict[str, Tensor] = {}


@settings
class Remembering(Sound):
    """Keeps beside its state what it needs in the next round."""

    name = "remembering"

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        before = MEMORY.get(client.name, torch.zeros(()))
        update = super().client_update(state, client, message, round_number, rng)
        MEMORY[client.name] = update.state.weights
        return Update(Point(update.state.weights + 0.1 * before), update.message, update.info)


@dataclass(frozen=True)
class Forgetful(State):
    """Leaves a field out when it is saved."""

    weights: Tensor
    turns: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights}


@settings
class Losing(Sound):
    """Its diagnostics and steps hang on a field that is lost when the state is saved."""

    name = "losing"
    client_state = Forgetful

    def client_init(self, client: Client) -> Forgetful:
        return Forgetful(client.initial_weights(), torch.ones(1))

    def client_update(
        self, state: Forgetful, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Forgetful]:
        update = super().client_update(Point(state.weights), client, message, round_number, rng)
        turns = torch.zeros(1) if state.turns is None else state.turns
        return Update(Forgetful(update.state.weights + turns, turns + 1), update.message, update.info)


@dataclass(frozen=True)
class Counting(State):
    weights: Tensor
    turns: int = 0  # not a tensor


@settings
class NoTensor(Sound):
    name = "no_tensor"
    client_state = Counting

    def client_init(self, client: Client) -> Counting:
        return Counting(client.initial_weights())


@settings
class AnotherClass(Sound):
    """Says one class of state and uses another."""

    name = "another_class"
    client_state = Forgetful


@settings
class Half(Sound):
    """Sends half of what was agreed."""

    name = "half"

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        update = super().client_update(state, client, message, round_number, rng)
        sent = dict(update.message.arrays)
        return Update(update.state, Message({**sent, "weights": sent["weights"][::2].clone()}), update.info)


@settings
class NeedsEverybody(Sound):
    """Fails where a client is away, or its reply was refused."""

    name = "needs_everybody"

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        return Global(torch.stack([replies[client].arrays["weights"] for client in range(roster.clients)]).mean(0))


@settings
class LastWins(Sound):
    """The last reply is the new model."""

    name = "last_wins"

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        for reply in replies.values():
            state = Global(reply.arrays["weights"])
        return state


@settings
class ByPlace(Sound):
    """Trains the longer the more clients of this process had their turn before."""

    name = "by_place"

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        SEEN.append(client.index)
        update = super().client_update(state, client, message, round_number, rng)
        return Update(Point(update.state.weights * (1 + len(SEEN))), update.message, update.info)


SEEN: list[int] = []


class Undeclared(Sound):
    """Not declared with @settings: anything would be taken for its settings."""

    name = "undeclared"


@settings
class Untyped(Sound):
    name = "untyped"

    rate: Any = Field(default=0.1, description="of any type")


@pytest.mark.parametrize(
    ("method", "check", "words"),
    [
        (Drawing(), check_pure, "client_update in round 0 gives another state the second time: .*draw from rng"),
        (Leftover(), check_pure, "client_update in round . gives another state the second time"),
        (InPlace(), check_pure, r"client_update in round 0 changes message\.weights: .*work on clones"),
        (ServerInPlace(), check_pure, r"server_update in round 0 changes replies\.0\.weights: .*work on clones"),
        (Remembering(), check_pure, "gives another state the second time: .*keep nothing in the method, its class"),
        (Losing(), check_states, "a client that was saved and loaded has another turn"),
        (Losing(), check_resume, "stopped and resumed gives other results: .*belongs into the states"),
        (NoTensor(), check_states, "client_state: cannot be saved and loaded .*every field a tensor"),
        (AnotherClass(), check_states, "client_state = Forgetful, but the state is a Point"),
        (Half(), check_replies, "the server would drop the reply of client 0: 'weights' has shape"),
        (NeedsEverybody(), check_hostile_replies, "server_update fails where only nobody replied"),
        (LastWins(), check_order, "other results if replies come in another order: use the client's number"),
        (ByPlace(), check_workers, "two worker processes give other results than one"),
        (Undeclared(), check_settings, "cannot be configured: .*declare its class with @settings"),
        (Untyped(), check_settings, r"'methods\.untyped\.rate={a = 1}' is accepted"),
    ],
    ids=lambda value: getattr(value, "name", None) or getattr(value, "__name__", ""),
)
def test_each_breach_is_caught_by_its_check(method: Method[Any, Any], check: Any, words: str) -> None:
    MEMORY.clear()
    SEEN.clear()
    with pytest.raises(AssertionError, match=words):
        check(method)


def test_what_keeps_the_contract_passes_and_a_failing_half_shows_its_own_traceback(two_workers: Engine) -> None:
    check_method(Sound(), two_workers)
    with pytest.raises(ClientFailure, match="missing"):
        check_pure(Failing())


@settings
class Failing(Sound):
    name = "failing"

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        raise KeyError("missing")


def test_checks_leave_the_method_as_it_was() -> None:
    method = Sound(learning_rate=0.01)
    check_settings(method)
    assert method == dataclasses.replace(Sound(), learning_rate=0.01)
