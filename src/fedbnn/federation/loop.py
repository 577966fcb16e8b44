"""The round loop: messages go out, clients take their turns, replies come in. Knows Method and Engine only."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbnn.base.arguments import check_kind
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import one_thread
from fedbnn.federation.callback import Callback, several
from fedbnn.federation.engines import Engine, InProcess, Site
from fedbnn.federation.evaluation import Scored, headline
from fedbnn.federation.faults import SILENT, Asking, FaultSettings
from fedbnn.federation.inputs import Inputs, seen_inputs
from fedbnn.federation.intake import SPOILS, joined
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, State, Variant
from fedbnn.federation.parties import Roster
from fedbnn.federation.server import PATIENCE, Server
from fedbnn.models.label_prior import Prior, checked
from fedbnn.models.regression import Answer


@dataclass(frozen=True)
class Turn:
    """What one client did in one round."""

    info: Mapping[str, float]
    bytes_up: int
    bytes_down: int
    seconds: float
    rejected: str = ""  # why the server let no reply in; empty when it did

    def and_then(self, later: "Turn") -> "Turn":
        """Both exchanges of one round as one turn."""
        return Turn(
            {**self.info, **later.info},
            self.bytes_up + later.bytes_up,
            self.bytes_down + later.bytes_down,
            self.seconds + later.seconds,
            self.rejected or later.rejected,
        )


@dataclass(frozen=True)
class Round:
    """What happened in one round: turns of those that took part, scores of all who have any if it was evaluated."""

    number: int
    turns: Mapping[int, Turn]
    scores: Mapping[int, Mapping[str, Scored]] = field(default_factory=dict)  # by client and variant
    seconds: float = 0.0
    set_aside: Sequence[int] = ()  # clients that are not asked again from here on
    fell_short: int = 0  # times that fewer good replies came than are needed, and it was held again

    def __repr__(self) -> str:
        parts = [f"{len(self.turns)} turns"]
        if self.scores:
            scores = [headline(variants).scores for variants in self.scores.values()]
            name = "crps" if "crps" in scores[0] else "own_class_accuracy"
            value = sum(one[name] for one in scores) / len(scores)
            parts.append(f"CRPS {value:.4g}" if name == "crps" else f"own-class accuracy {value:.1%}")
        if rejected := sum(bool(turn.rejected) for turn in self.turns.values()):
            parts.append(f"{rejected} rejected")
        if self.fell_short:
            parts.append(f"held again {self.fell_short} times")
        if self.set_aside:
            parts.append(f"{len(self.set_aside)} set aside")
        return f"<Round {self.number}: {', '.join(parts)}, {self.seconds:.1f} s>"


Listener = Callable[[str, int, int], None]
"""Called with ("update" or "evaluate", round, client) whenever a client is done."""


def _nobody(activity: str, round_number: int, client: int) -> None:
    """Nobody listens."""


def roster_of(sites: Sequence[Site]) -> Roster:
    """What the server may know of these sites."""
    first = sites[0].client
    return Roster(
        names=tuple(site.client.name for site in sites),
        classes=first.classes,
        alignment=first.alignment,
        models=tuple(site.client.model for site in sites),
        rounds=first.rounds,
        seed=first.seed,
        privacy=first.privacy,
        ledgers=first.ledgers and first.ledgers.parent / "server",
        signers=first.signers,
        multiplicity=max(site.client.multiplicity for site in sites),
    )


class Federation:
    """A method running on an engine over the clients of some sites."""

    def __init__(
        self,
        method: Method[Any, Any],
        sites: Sequence[Site],
        *,
        seed: int = 0,
        participation: float = 1.0,
        patience: int = PATIENCE,
        quorum: int = 0,
        faults: FaultSettings | None = None,
        engine: Engine | None = None,
    ) -> None:
        check_kind("method", method, Method, "a method, such as fedbnn.FedBNN()")
        check_kind("sites", sites, (list, tuple), "the list that fedbnn.make_sites returns")
        if not sites:
            raise UserError("sites: the list is empty; a federation has at least one client")
        if not 0 < participation <= 1:
            raise UserError(
                f"participation = {participation!r}: the share of clients in a round, above 0 and at most 1"
            )
        self.sites = tuple(sites)
        for site in sites:
            method.check_client(site.client)
        roster = roster_of(sites)
        self._server = Server(method, roster, seed=seed, participation=participation, patience=patience, quorum=quorum)
        self.engine = engine or InProcess()
        self._asking = Asking(self.engine, faults or FaultSettings(), seed)
        self.engine.start(method, sites, seed)

    def __repr__(self) -> str:
        held = {-1: "not begun", 0: "after the warm-up"}.get(self.round_number, f"after round {self.round_number}")
        return f"<Federation: {self.method.name}, {len(self.sites)} clients, {type(self.engine).__name__}, {held}>"

    @property
    def seed(self) -> int:
        return self._server.seed

    @property
    def participation(self) -> float:
        return self._server.participation

    @property
    def method(self) -> Method[Any, Any]:
        return self._server.method

    @property
    def roster(self) -> Roster:
        return self._server.roster

    @property
    def server(self) -> State:
        """The server's state."""
        return self._server.state

    @property
    def round_number(self) -> int:
        """The last round that is finished; 0 is the warm-up, -1 before it."""
        return self._server.round_number

    def participants(self, round_number: int) -> list[int]:
        """Everybody in the warm-up; later a random share, at least one. Nobody who is set aside."""
        return self._server.participants(round_number)

    @one_thread()
    def step(self, evaluate: bool = True, listener: Listener = _nobody, foreign: bool = False) -> Round:
        """The next round: broadcast, turns of the participants, check of the replies, server update, scores."""
        started = time.perf_counter()
        number = self.round_number + 1
        turns: dict[int, Turn] = {}
        set_aside: list[int] = []
        heard: set[int] = set()
        fell_short = 0
        while self.round_number < number:
            needed, again = self._server.needed, self._server.failures > 0
            messages = self._server.messages(self._server.asked)
            accepted: dict[int, Message] = {}
            exchange = {client: Turn({}, 0, message.nbytes, 0.0, SILENT) for client, message in messages.items()}
            for client, reply in self._asking.ask(number, messages, again):
                rejected = self._server.refusal(client, reply.message)
                if not rejected:
                    accepted[client] = reply.message
                exchange[client] = Turn(
                    reply.info, reply.message.nbytes, messages[client].nbytes, reply.seconds, rejected
                )
                if client not in heard:
                    listener("update", number, client)
                heard.add(client)
            good = self._take_in(accepted, exchange, needed)
            refused = [client for client, turn in exchange.items() if turn.rejected not in ("", SILENT)]
            set_aside += self._server.judge(good, refused)
            if len(good) < needed:
                fell_short += 1
                self._server.fell_short(needed)
                continue
            self._asking.forget()
            for client, turn in exchange.items():
                turns[client] = turns[client].and_then(turn) if client in turns else turn
        scores = self.evaluate(listener, foreign) if evaluate else {}
        seconds = time.perf_counter() - started
        return Round(number, dict(sorted(turns.items())), scores, seconds, set_aside, fell_short)

    def _take_in(self, accepted: dict[int, Message], turns: dict[int, Turn], needed: int) -> dict[int, Message]:
        """Go on with these replies but those that spoil it, which are marked as refused; the replies that were good.

        With fewer than needed, nothing has happened.
        """
        if len(accepted) < needed:
            return accepted
        state, spoilt = joined(self._server, accepted)
        if state is None:
            self._server.after(accepted)  # where the arithmetic fails, its own error says why
            raise UserError(
                f"round {self.round_number + 1}: with none of the replies the server has anything that clients would "
                f"take: training has diverged; shorten the steps (the rates under methods.{self.method.name})"
            )
        for client in spoilt:
            turns[client] = replace(turns[client], rejected=SPOILS)
        good = {client: message for client, message in accepted.items() if client not in spoilt}
        if len(good) >= needed:
            self._server.finish(state)
        return good

    def run(self, rounds: int, callbacks: Callback | Sequence[Callback] = ()) -> list[Round]:
        """The warm-up, if it has not been, and rounds up to number `rounds`; those that were held.

        `callbacks` hear of each client and round in their order; the first that asks for an end gets it.
        """
        if type(rounds) is not int or rounds < 0:
            raise UserError(f"rounds = {rounds!r}: the number of the last round, a whole number from 0 up")
        heard = several(callbacks, Callback, "callbacks")
        for one in heard:
            one.check(self.sites)

        def listener(activity: str, round_number: int, client: int) -> None:
            for one in heard:
                one.client_done(activity, round_number, client)

        held: list[Round] = []
        while self.round_number < rounds:
            held.append(self.step(listener=listener))
            for one in heard:
                one.round_done(held[-1])
            if any(one.stop() for one in heard):
                break
        return held

    @one_thread()
    def evaluate(self, listener: Listener = _nobody, foreign: bool = False) -> dict[int, Mapping[str, Scored]]:
        """Scores of every client's models as they are now, the method's headline variant first.

        A client without records of its own to be scored on has none.

        With `foreign`, their uncertainty is also tried on the sites' foreign inputs: this costs another pass.
        """
        scores: dict[int, Mapping[str, Scored]] = {}
        messages = self._server.messages([site.client.index for site in self.sites if site.scored])
        for client, evaluation in self.engine.evaluate(self.round_number, messages, foreign):
            scores[client] = evaluation
            listener("evaluate", self.round_number, client)
        return dict(sorted(scores.items()))

    def predict(
        self,
        client: int,
        x: Inputs,
        variant: Variant | None = None,
        prior: Prior | None = None,
        *,
        raw: bool = False,
    ) -> Answer:
        """The predictive distribution of a client's model: of this variant, or of the method's headline.

        `x` is a NumPy array, a torch tensor or a pandas table, a record a row. With `raw` its values are as in the data
        set's files and are scaled here; without, they are scaled already, as `FederatedData.seen` and `evaluation` give
        them. A table's columns are taken in the order in which they stand.

        `prior` says how likely each class is before its record is seen: "own" (as among the client's records),
        "uniform", "estimate" (as fits the inputs x best), or a share for each class. Without one it is the variant's.
        In regression there is none, and what comes back is a `Mixture` in the target's own unit.
        """
        if client not in range(len(self.sites)):
            raise UserError(f"client = {client!r}: there are {len(self.sites)}, numbered from 0")
        if prior is not None and self.roster.regression:
            raise UserError("prior: it is for classes, and in regression there are none")
        asked = None if prior is None else checked(prior, self.roster.classes)
        message = self.method.broadcast(self.server, client)
        inputs = seen_inputs(x, self.sites[client], raw=raw)
        return self.engine.predict(client, inputs, self.round_number, message, variant, asked)

    def save(self, folder: Path) -> None:
        """Server's and clients' states as safetensors files."""
        self._server.save(folder)
        self.engine.save(folder)

    def load(self, folder: Path, round_number: int) -> None:
        """Go on from what `save` wrote after this round."""
        self._server.load(folder, round_number)
        self.engine.load(folder)

    def close(self) -> None:
        self.engine.close()
