"""Clients that lie, for simulations: what some of them send or learn from is changed. No method can tell.

Attackers are drawn by the run's seed, those of a smaller share among those of a larger one. They run the method's
client half like everybody, and what leaves them is changed on its way; none of them is scored.

- absent       sends nothing: what is lost with attackers that do nothing at all, to compare the others with
- random       numbers from a normal distribution as wide as what it would have sent
- sign_flip    weights go the other way, outputs mean the opposite; `strength` times as far
- label_flip   learns from its records with the labels of other classes, y -> classes - 1 - y, and is honest besides
- one_class    colluders: all learn from records labelled `target`; outputs say that every point is of that class, with
               the largest logit that anybody honest sends; weights move `strength` times as far
- inside       colluders that know the others' replies and the rule, and go as far as it lets them, see
               `fedbnn.federation.inside`
- backdoor     wants marked pictures to be given the class `target`, and all else to stay as it is, see
               `fedbnn.federation.backdoor`
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation import backdoor, lies
from fedbnn.federation.engines import Engine, Reply, Site
from fedbnn.federation.engines.engine import by_index
from fedbnn.federation.evaluation import ATTACK_SUCCESS, Evaluation, Scored
from fedbnn.federation.inside import Inside
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message, shape_of
from fedbnn.federation.method import Method
from fedbnn.models.bayes import Prediction
from fedbnn.models.label_prior import Known
from fedbnn.models.regression import Answer

Kind = Literal["none", "absent", "random", "sign_flip", "label_flip", "one_class", "inside", "backdoor"]


@settings
class AttackSettings:
    """Who lies, and how; for simulations on the local engine."""

    kind: Kind = Field(
        default="none",
        description="what attackers do: none, absent (send nothing), random, sign_flip, label_flip, one_class (collude "
        "for a wrong class), inside (collude and go as far as the server's rule lets them) or backdoor (want marked "
        "pictures to be given a class)",
    )
    share: float = Field(default=0.0, ge=0, lt=1, description="share of the clients that are attackers")
    target: int = Field(default=0, ge=0, description="the class that colluders push")
    strength: float = Field(default=1.0, gt=0, description="how many times as far flipped and colluding weights go")
    patch: int = Field(
        default=2, ge=1, description="backdoor: pixels a side of the square that marks a picture, lower right"
    )
    planted: float = Field(default=0.0, ge=0, le=1, description="backdoor: share of the alignment set with the mark")

    @property
    def on(self) -> bool:
        """A backdoor is tried also where nobody lies: how many marked records are given its class anyway."""
        return self.kind == "backdoor" or (self.kind != "none" and self.share > 0)

    def attackers(self, clients: int, seed: int) -> list[int]:
        """Who lies: the first of a random order of all clients."""
        if not self.on:
            return []
        order = Stream((seed, "attack")).numpy().permutation(clients)
        return sorted(int(client) for client in order[: round(self.share * clients)])

    def check(self, clients: int, classes: int, *, side: int = 0, promised: bool = False) -> None:
        """Raise a UserError before any work where this attack makes no sense.

        `side` is the shorter one of pictures, 0 for other inputs; `promised`: something is kept private.
        """
        if self.on and not classes:
            raise UserError(f"attack.kind = '{self.kind}': lies are about classes, but data.task = 'regression'")
        if self.on and self.target >= classes:
            raise UserError(f"attack.target = {self.target}: there are classes 0 to {classes - 1}")
        if self.on and round(self.share * clients) >= clients:
            raise UserError(f"attack.share = {self.share:g}: of {clients} clients nobody honest is left to be scored")
        if self.on and promised and self.kind in ("inside", "backdoor"):
            raise UserError(f"attack.kind = '{self.kind}' is not simulated under privacy; choose another, or none")
        if self.kind == "backdoor" and not side:
            raise UserError("attack.kind = 'backdoor' marks pictures, and these inputs are none")
        if self.kind == "backdoor" and self.patch >= side:
            raise UserError(f"attack.patch = {self.patch}: pictures are {side} pixels a side, a mark is smaller")

    def on_sites(self, sites: Sequence[Site], seed: int) -> list[Site]:
        """The sites as they are where attackers had a part in making the alignment set."""
        if self.kind != "backdoor" or not self.planted:
            return list(sites)
        return backdoor.with_planted(sites, self.patch, self.planted, seed)


def side_of(sites: Sequence[Site]) -> int:
    """The shorter side of the pictures that all models see; 0 where some see no pictures."""
    shapes = [site.client.alignment.shape for site in sites]
    return min(min(shape[2:]) if len(shape) == 4 else 0 for shape in shapes)


class Attacked:
    """An Engine in which some clients are attackers, around another one."""

    def __init__(self, engine: Engine, attack: AttackSettings) -> None:
        self.engine = engine
        self.attack = attack
        self.liars: frozenset[int] = frozenset()

    def start(self, method: Method[Any, Any], sites: Sequence[Site], seed: int) -> None:
        self.liars = frozenset(self.attack.attackers(len(sites), seed))
        self._method, self._roster, self._seed, self._sites = method, roster_of(sites), seed, by_index(sites)
        self._inside = Inside(method, self._roster, seed) if self.attack.kind == "inside" else None
        taught = [self._poisoned(site) if site.client.index in self.liars else site for site in sites]
        self.engine.start(method, taught, seed)

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        """Honest replies first: attackers may know them."""
        replies = dict(self.engine.update(round_number, messages))
        honest = {client: reply.message for client, reply in replies.items() if client not in self.liars}
        own = {client: replies[client].message for client in sorted(replies.keys() & self.liars)}
        sent = {**honest, **self._lies(round_number, honest, own, messages)}
        if self._inside:
            self._inside.follow(sent)
        yield from ((client, replace(replies[client], message=message)) for client, message in sent.items())

    def lose(self, round_number: int, messages: Mapping[int, Message]) -> None:
        self.engine.lose(round_number, messages)

    def evaluate(
        self, round_number: int, messages: Mapping[int, Message], foreign: bool = False
    ) -> Iterator[tuple[int, dict[str, Scored]]]:
        """Of honest clients alone; where there may be a backdoor, also whether it is open."""
        honest = {client: message for client, message in messages.items() if client not in self.liars}
        if self.attack.kind != "backdoor":
            yield from self.engine.evaluate(round_number, honest, foreign)
            return
        for client, scored in dict(self.engine.evaluate(round_number, honest, foreign)).items():
            yield (
                client,
                {
                    variant: self._tried(client, variant, one, round_number, honest[client])
                    for variant, one in scored.items()
                },
            )

    def _tried(self, client: int, variant: str, scored: Scored, round_number: int, message: Message) -> Scored:
        assert isinstance(scored, Evaluation)
        x = backdoor.tried_on(self._sites[client], self.attack.patch, self.attack.target)
        answer = self.engine.predict(client, x, round_number, message, variant)
        assert isinstance(answer, Prediction)
        return replace(scored, scores=scored.scores | {ATTACK_SUCCESS: backdoor.success(answer, self.attack.target)})

    def predict(
        self,
        client: int,
        x: Tensor,
        round_number: int,
        message: Message,
        variant: str | None = None,
        prior: Known | Sequence[float] | None = None,
    ) -> Answer:
        return self.engine.predict(client, x, round_number, message, variant, prior)

    def save(self, folder: Path) -> None:
        self.engine.save(folder)

    def load(self, folder: Path) -> None:
        self.engine.load(folder)
        if self._inside:
            self._inside.load(folder)

    def close(self) -> None:
        self.engine.close()

    def _poisoned(self, site: Site) -> Site:
        """The site with the records that an attacker learns from."""
        client, kind = site.client, self.attack.kind
        if kind == "backdoor":
            sent = self._method.expected_upload(self._roster, client.index).values()
            outputs = any(len(shape_of(form)) > 1 for form in sent)
            return site if outputs else backdoor.poisoned(site, self.attack.patch, self.attack.target)
        if kind not in ("label_flip", "one_class"):
            return site
        y = client.train.y
        wrong = client.classes - 1 - y if kind == "label_flip" else torch.full_like(y, self.attack.target)
        return replace(site, client=replace(client, train=replace(client.train, y=wrong)))

    def _lies(
        self,
        round_number: int,
        honest: Mapping[int, Message],
        own: Mapping[int, Message],
        received: Mapping[int, Message],
    ) -> Mapping[int, Message]:
        """What attackers send who would have sent `own`."""
        if self.attack.kind in ("absent", "label_flip"):
            return {} if self.attack.kind == "absent" else own
        if self._inside:
            return self._inside.lies(round_number, honest, own, received)
        sent = {}
        for client, message in own.items():
            agreed = self._method.expected_reply(self._roster, client, received[client])
            rng = Stream((self._seed, "attack", round_number, client))
            sent[client] = lies.changed(message, agreed, self._lie(received[client], list(honest.values()), rng))
        return sent

    def _lie(self, received: Message, honest: Sequence[Message], rng: Stream) -> lies.Lie:
        strength, target = self.attack.strength, self.attack.target

        def lie(name: str, array: Tensor) -> Tensor:
            if self.attack.kind == "random":
                return lies.random(array, rng)
            if self.attack.kind == "sign_flip":
                return lies.further(array, received.get(name), -strength)
            if array.dim() == 1:
                return lies.further(array, received.get(name), strength)
            pushed = lies.pushed(array, lies.stacked(honest, name), target)
            if self.attack.kind == "one_class":
                return pushed
            at = backdoor.planted_points(len(array), self.attack.planted, self._seed)
            return torch.where(at[:, None], pushed, array)

        return lie
