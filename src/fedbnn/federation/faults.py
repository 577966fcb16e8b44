"""Clients that fail by accident, for simulations: what befalls a client whenever it is asked. No method can tell.

One number u, uniform in [0, 1), of (run seed, round, how often the round's clients were asked before, client) decides:
the rates are shares of [0, 1) in the order below, what is left is a client that answers. So rates are exact and
exclude each other, and who fails at a small `dropout` also fails at a larger one.

- dropout      is not there: it takes no turn, and sends nothing
- straggler    takes its turn and keeps its new state, but the reply comes too late, and a late reply is lost, as it is
               in a deployment. The server cannot tell it from dropout
- crash        dies at the end of its turn, before the new state is saved: it goes on from the one before. What its
               ledger was charged stays charged
- corrupt      takes its turn, and the reply arrives cut short: the door refuses it as it would anybody's

A client takes one turn an exchange. Where too few good replies came and the exchange is held again, faults are drawn
anew, who has taken its turn sends the reply that it has, and only the others take theirs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, get_args

from pydantic import Field, model_validator

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.engines import Engine, Reply
from fedbnn.federation.message import Message

Fault = Literal["dropout", "straggler", "crash", "corrupt"]

SILENT = "it did not answer in time"
UNHEARD = ("dropout", "straggler", "crash")
"""After these the server has no reply."""


@settings
class FaultSettings:
    """How often clients fail, as shares of all times that one is asked; for simulations."""

    dropout: float = Field(default=0.0, ge=0, le=1, description="share of turns that a client misses: it is not there")
    straggler: float = Field(
        default=0.0, ge=0, le=1, description="share of turns that are taken, but whose reply comes too late and is lost"
    )
    crash: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of turns in which the client dies: nothing is sent, and it goes on from the state before",
    )
    corrupt: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of turns whose reply is damaged on its way, and refused as a wrong one of anybody's is",
    )

    @model_validator(mode="after")
    def _shares(self) -> "FaultSettings":
        if (total := sum(self.rates.values())) > 1 + 1e-9:
            raise ValueError(f"dropout, straggler, crash and corrupt are shares of one whole, but add up to {total:g}")
        return self

    @property
    def rates(self) -> dict[Fault, float]:
        return {fault: getattr(self, fault) for fault in get_args(Fault)}

    @property
    def on(self) -> bool:
        return any(self.rates.values())

    def drawn(self, seed: int, round_number: int, before: int, clients: Iterable[int]) -> dict[int, Fault]:
        """Which of these clients fail, and how, when they are asked in a round for the time after `before` others."""
        found: dict[int, Fault] = {}
        if not self.on:
            return found
        for client in clients:
            u = Stream((seed, "faults", round_number, before, client)).numpy().random()
            for fault, rate in self.rates.items():
                if 0 <= u < rate:
                    found[client] = fault
                u -= rate
        return found


class Asking:
    """Asks the clients of an engine, some of which fail; who has taken its turn does not take it again."""

    def __init__(self, engine: Engine, faults: FaultSettings, seed: int) -> None:
        self._engine, self._faults, self._seed = engine, faults, seed
        self._round, self._asked = -1, 0  # in this round, so many times
        self._replies: dict[int, Reply] = {}  # of the exchange that is held

    def ask(self, round_number: int, messages: Mapping[int, Message], again: bool) -> Iterator[tuple[int, Reply]]:
        """What arrives of the replies; `again`: the same messages went out before, and too few good replies came."""
        if round_number != self._round:
            self._round, self._asked = round_number, 0
        if not again:
            self.forget()
        faults = self._faults.drawn(self._seed, round_number, self._asked, messages)
        self._asked += 1
        there = {client: message for client, message in messages.items() if faults.get(client) != "dropout"}
        new = {client: message for client, message in there.items() if client not in self._replies}
        dying = {client: message for client, message in new.items() if faults.get(client) == "crash"}
        for client, reply in list(self._replies.items()):
            if client in there:
                yield from _arrived(client, reply, faults)
        for client, reply in self._engine.update(round_number, {c: m for c, m in new.items() if c not in dying}):
            self._replies[client] = reply
            yield from _arrived(client, reply, faults)
        if dying:
            self._engine.lose(round_number, dying)

    def forget(self) -> None:
        """The exchange is over: nobody is asked for these replies again."""
        self._replies = {}


def _arrived(client: int, reply: Reply, faults: Mapping[int, Fault]) -> Iterator[tuple[int, Reply]]:
    fault = faults.get(client)
    if fault not in UNHEARD:
        yield client, replace(reply, message=cut_short(reply.message)) if fault == "corrupt" else reply


def cut_short(message: Message) -> Message:
    """What is left of a message that broke off: the first half of its last array, which is of no agreed shape.

    One without any number has nothing to lose.
    """
    names = sorted(name for name, array in message.arrays.items() if array.numel())
    if not names:
        return message
    whole = message.arrays[names[-1]].flatten()
    return Message({**message.arrays, names[-1]: whole[: len(whole) // 2]})
