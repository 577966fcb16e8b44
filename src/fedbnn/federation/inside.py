"""Colluders that know the rule, and in each round go as far as it lets them (Shejwalkar, Houmansadr 2021).

They know all honest replies x_i and keep a copy of the server, on which lies are tried out before one is sent:

    mean(x) + g p        with g out of SCALES, and p one of

    outputs:  sd(x), down for the class that the honest mean finds likeliest and up for the others; against mean(x);
              and the likeliest class for the second, these two as long as sd(x)
    weights:  -sd(x); against the way mean(x) has gone; and the signs of that, these two as long as sd(x)

Sent is the one that does most harm to what the server would send next: of outputs, to the lead that classes have there
that would be found likeliest without any lie; of weights, by how far they are from those without. All say the same.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbnn.federation.intake import joined
from fedbnn.federation.lies import Lie, changed, stacked
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Roster
from fedbnn.federation.server import Server

SCALES = tuple(2 ** (step / 2) for step in range(-3, 7))


class Inside:
    """What colluders know and agree on."""

    def __init__(self, method: Method[Any, Any], roster: Roster, seed: int) -> None:
        self._server = Server(method, roster, seed=seed)

    def load(self, folder: Path) -> None:
        """Go on from where the server stands whose state was written here."""
        self._server.load(folder, self._server.round_number)

    def lies(
        self,
        round_number: int,
        honest: Mapping[int, Message],
        own: Mapping[int, Message],
        received: Mapping[int, Message],
    ) -> dict[int, Message]:
        """What each colluder sends, which would have sent `own`; among fewer than two honest ones just that."""
        self._server.round_number = round_number - 1
        if len(honest) < 2 or not own:
            return dict(own)
        without = self._next(honest)
        best, most = dict(own), -math.inf
        for lie in self._tried(honest, own, received):
            if any(self._server.refusal(client, message) for client, message in lie.items()):
                continue
            harm = _harm(without, self._next({**honest, **lie}))
            if harm > most:
                best, most = lie, harm
        return best

    def follow(self, replies: Mapping[int, Message]) -> None:
        """The server has these replies now, and makes of them what it makes of them."""
        accepted = {client: message for client, message in replies.items() if not self._server.refusal(client, message)}
        state, _ = joined(self._server, accepted)
        if state is not None:
            self._server.finish(state)

    def _next(self, replies: Mapping[int, Message]) -> Message:
        """What the server would send next to one that is honest."""
        return self._server.method.broadcast(self._server.after(replies), min(replies))

    def _tried(
        self, honest: Mapping[int, Message], own: Mapping[int, Message], received: Mapping[int, Message]
    ) -> Iterator[dict[int, Message]]:
        """Every lie that is tried, as what each of them would send."""
        any_liar = min(own)
        known = {name: stacked(list(honest.values()), name) for name in own[any_liar].arrays}
        ways = {name: _ways(x, received[any_liar].get(name)) for name, x in known.items()}
        for way in range(3):
            for scale in SCALES:
                lie = _saying({name: x.mean(0) + scale * ways[name][way] for name, x in known.items()})
                yield {client: changed(message, self._server.expected(client), lie) for client, message in own.items()}


def _saying(arrays: Mapping[str, Tensor]) -> Lie:
    """These, whatever one would have said."""
    return lambda name, _: arrays[name]


def _ways(x: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """P of each kind, where honest clients send x."""
    mean, sd = x.mean(0), x.std(0)
    length = float(torch.linalg.vector_norm(sd))

    def as_long(way: Tensor) -> Tensor:
        return way * (length / max(float(torch.linalg.vector_norm(way)), 1e-30))

    if mean.dim() == 1:
        gone = mean if start is None else mean - start
        return -sd, as_long(-gone), as_long(-gone.sign())
    first = mean.argmax(-1, keepdim=True)
    second = mean.scatter(-1, first, -math.inf).argmax(-1, keepdim=True)
    against = torch.ones_like(mean).scatter(-1, first, -1.0)
    instead = torch.zeros_like(mean).scatter(-1, second, 1.0).scatter(-1, first, -1.0)
    return against * sd, as_long(-mean), as_long(instead)


def _harm(without: Message, found: Message) -> float:
    """How much worse this is to receive than what would have come without lies."""
    harm = 0.0
    for name, array in without.arrays.items():
        other = found.get(name)
        if other is None or other.shape != array.shape or not array.is_floating_point():
            continue
        if array.dim() == 1:
            harm += float(torch.linalg.vector_norm(other.double() - array.double()))
        else:
            first = array.argmax(-1, keepdim=True)
            harm += float((_lead(array, first) - _lead(other, first)).mean())
    return harm


def _lead(outputs: Tensor, first: Tensor) -> Tensor:
    """By how much these classes are ahead of the likeliest of the others."""
    others = outputs.double().scatter(-1, first, -math.inf).amax(-1, keepdim=True)
    return outputs.double().gather(-1, first) - others
