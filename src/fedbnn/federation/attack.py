"""Clients that lie, for simulations: what some of them send or learn from is changed. No method can tell.

Attackers are drawn by the run's seed, those of a smaller share among those of a larger one. They run the method's
client half like everybody, and what leaves them is changed on its way; none of them is scored.

- absent       sends nothing: what is lost with attackers that do nothing at all, to compare the others with
- random       numbers from a normal distribution as wide as what it would have sent
- sign_flip    weights go the other way, outputs mean the opposite; `strength` times as far
- label_flip   learns from its records with the labels of other classes, y -> classes - 1 - y, and is honest besides
- one_class    colluders: all learn from records labelled `target`; outputs say that every point is of that class, with
               the largest logit that anybody honest sends; weights move `strength` times as far
- inside       colluders that know the others' replies and stay among them (Baruch, Baruch, Goldberg 2019): each sends

                   mean +- z sd        of each number over honest clients,    z = Phi^-1((N - s) / N'),

               s = floor(N / 2 + 1) - attackers, N' honest clients: so far out that with s of them it is a majority. The
               sign is against the honest mean: down for its likeliest class, up for the others; down for weights
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.engines import Engine, Reply, Site
from fedbnn.federation.evaluation import Scored
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Distributions, Message, Numbers, UploadSpec
from fedbnn.federation.method import Method
from fedbnn.models.label_prior import Known
from fedbnn.models.regression import Answer

Kind = Literal["none", "absent", "random", "sign_flip", "label_flip", "one_class", "inside"]


@settings
class AttackSettings:
    """Who lies, and how; for simulations on the local engine."""

    kind: Kind = Field(
        default="none",
        description="what attackers do: none, absent (send nothing), random, sign_flip, label_flip, one_class (collude "
        "for a wrong class) or inside (collude and stay among the honest replies)",
    )
    share: float = Field(default=0.0, ge=0, lt=1, description="share of the clients that are attackers")
    target: int = Field(default=0, ge=0, description="the class that colluders push")
    strength: float = Field(default=1.0, gt=0, description="how many times as far flipped and colluding weights go")

    @property
    def on(self) -> bool:
        return self.kind != "none" and self.share > 0

    def attackers(self, clients: int, seed: int) -> list[int]:
        """Who lies: the first of a random order of all clients."""
        if not self.on:
            return []
        order = Stream((seed, "attack")).numpy().permutation(clients)
        return sorted(int(client) for client in order[: round(self.share * clients)])

    def check(self, clients: int, classes: int) -> None:
        """Raise a UserError before any work where this attack makes no sense."""
        if self.on and not classes:
            raise UserError(f"attack.kind = '{self.kind}': lies are about classes, but data.task = 'regression'")
        if self.on and self.target >= classes:
            raise UserError(f"attack.target = {self.target}: there are classes 0 to {classes - 1}")
        if self.on and round(self.share * clients) >= clients:
            raise UserError(f"attack.share = {self.share:g}: of {clients} clients nobody honest is left to be scored")


class Attacked:
    """An Engine in which some clients are attackers, around another one."""

    def __init__(self, engine: Engine, attack: AttackSettings) -> None:
        self.engine = engine
        self.attack = attack
        self.liars: frozenset[int] = frozenset()

    def start(self, method: Method[Any, Any], sites: Sequence[Site], seed: int) -> None:
        self.liars = frozenset(self.attack.attackers(len(sites), seed))
        self._method, self._roster, self._seed = method, roster_of(sites), seed
        taught = [self._poisoned(site) if site.client.index in self.liars else site for site in sites]
        self.engine.start(method, taught, seed)

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        """Honest replies first: attackers may know them."""
        replies = dict(self.engine.update(round_number, messages))
        honest = {client: reply for client, reply in replies.items() if client not in self.liars}
        yield from honest.items()
        if self.attack.kind == "absent":
            return
        for client in sorted(replies.keys() & self.liars):
            form = self._method.expected_reply(self._roster, client, messages[client])
            rng = Stream((self._seed, "attack", round_number, client))
            sent = self._lie(replies[client].message, messages[client], form, [r.message for r in honest.values()], rng)
            yield client, replace(replies[client], message=sent)

    def lose(self, round_number: int, messages: Mapping[int, Message]) -> None:
        self.engine.lose(round_number, messages)

    def evaluate(
        self, round_number: int, messages: Mapping[int, Message], foreign: bool = False
    ) -> Iterator[tuple[int, dict[str, Scored]]]:
        """Of honest clients alone."""
        honest = {client: message for client, message in messages.items() if client not in self.liars}
        return self.engine.evaluate(round_number, honest, foreign)

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

    def close(self) -> None:
        self.engine.close()

    def _poisoned(self, site: Site) -> Site:
        """The site with the records that an attacker learns from."""
        client, kind = site.client, self.attack.kind
        if kind not in ("label_flip", "one_class"):
            return site
        y = client.train.y
        wrong = client.classes - 1 - y if kind == "label_flip" else torch.full_like(y, self.attack.target)
        return replace(site, client=replace(client, train=replace(client.train, y=wrong)))

    def _lie(
        self, own: Message, received: Message, agreed: UploadSpec, honest: Sequence[Message], rng: Stream
    ) -> Message:
        lies: dict[str, Callable[[str, Tensor], Tensor]] = {
            "random": lambda _, array: _random(array, rng),
            "sign_flip": lambda name, array: self._further(array, received.get(name), -self.attack.strength),
            "one_class": lambda name, array: self._pushed(array, received.get(name), _stacked(honest, name)),
            "inside": lambda name, array: _inside(array, _stacked(honest, name), len(self.liars)),
        }
        lie = lies.get(self.attack.kind)
        if lie is None:
            return own
        arrays = dict(own.arrays)
        for name, form in agreed.items():
            if isinstance(form, Distributions):
                arrays[name] = _on_simplex(lie(name, arrays[name]))
            elif name != "records" and not (isinstance(form, Numbers) and form.low >= 0):
                arrays[name] = lie(name, arrays[name])
        return Message(arrays)

    def _further(self, array: Tensor, start: Tensor | None, times: float) -> Tensor:
        """Weights that have gone that many times as far from where they began; outputs as many times as large."""
        outputs = array.dim() > 1
        return times * array if outputs or start is None else start + times * (array - start)

    def _pushed(self, array: Tensor, start: Tensor | None, honest: Tensor) -> Tensor:
        if array.dim() == 1:
            return self._further(array, start, self.attack.strength)
        largest = float(honest.abs().max()) if len(honest) else float(array.abs().max())
        pushed = torch.full_like(array, -largest / (array.shape[-1] - 1))
        pushed[..., self.attack.target] = largest
        return pushed


def _stacked(honest: Sequence[Message], name: str) -> Tensor:
    found = [message.arrays[name] for message in honest if name in message.arrays]
    return torch.stack(found) if found else torch.zeros(0)


def _random(array: Tensor, rng: Stream) -> Tensor:
    spread = float(array.std()) if array.numel() > 1 else 1.0
    return torch.randn(array.shape, generator=rng.torch()) * spread + array.mean()


def _inside(array: Tensor, honest: Tensor, liars: int) -> Tensor:
    if len(honest) < 2:
        return array
    clients = len(honest) + liars
    needed = clients // 2 + 1 - liars
    z = NormalDist().inv_cdf(min(max((len(honest) - needed) / len(honest), 0.5), 0.999))
    mean, sd = honest.mean(0), honest.std(0)
    if array.dim() == 1:
        return mean - z * sd
    against = torch.ones_like(mean).scatter_(-1, mean.argmax(-1, keepdim=True), -1.0)
    return mean + against * z * sd


def _on_simplex(lie: Tensor) -> Tensor:
    positive = (lie - lie.amin(-1, keepdim=True).clamp_max(0)).clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, positive / total.clamp_min(1e-30), torch.full_like(lie, 1 / lie.shape[-1]))
