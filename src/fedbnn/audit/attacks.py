"""Attacks on clients that promise differential privacy: how a server finds out whether a record is there.

Two worlds differ in one record, the canary. The adversary is the server. It knows everything but the world and the
noise, has chosen the records (all of them the client's first one, of class a; the canary is one more, said to be of
class b), and sees the messages that leave the client, nothing else. It asks for one reply more than was planned, which
the client must refuse, or repeat what it said before.

- dp_moments            It sends heads that are sure of a wrong class for the canary, another class each round, so that
                        the canary's gradient is as long as it can be before it is shortened. In each reply it measures
                        the canary's own contribution to the sum and, in case noise is used twice, the next round's.
- dp_teacher            From the class probabilities it solves for the head, and undoes the filter through which the sum
                        became the head. The part of the sum that counts records is lost to it: 5 percent of mu.
- output_perturbation   The canary's numbers are blown up, and the personal model is one that such a record turns
                        around, so that every output changes from a to b.

The first two do not depend on the personal model. So the client has few records, a tiny model and hardly any training:
the same release gates, ledgers and noise, in milliseconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.features.public import Public, public
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client
from fedbnn.methods.exchange import Exchange
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import Records, TrainingSettings
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.head import TEACHER, Shape, contributions, improved
from fedbnn.privacy.sums import UNIT

_RECORDS = 10
_POINTS = 200  # of the alignment set: more would only take longer
_STEPS = 5  # of local training, where it matters
_SURE = 1e4  # logit of a head that is sure
_BLOWN_UP = 1e4
_GAIN = 1e6  # a few steps of training make `BySize` sure
_FAINT = 1e-4  # directions of the alignment set with a smaller part of the first one's moment are not solved for


@dataclass(frozen=True)
class Attack:
    """Attributes:

    without, present: the client in the two worlds.
    messages: what the server sends, turn by turn.
    planned: how many turns the client has to answer; the rest it may refuse.
    read: what the adversary makes of the reply of a turn; as many numbers for each turn.

    """

    method: Exchange[Any]
    without: Client
    present: Client
    messages: tuple[Message, ...]
    planned: int
    read: Callable[[int, Message], list[float]]

    @cached_property
    def _state(self) -> Any:
        """Where the client begins, in each turn and in both worlds: no record has a part in it."""
        return self.method.client_init(self.without)

    def trial(self, client: Client, ledgers: Path) -> list[float]:
        """What a client with a new ledger shows; zeros for what it refuses."""
        client = replace(client, ledgers=ledgers)
        shown: list[float] = []
        for turn, message in enumerate(self.messages):
            try:
                update = self.method.client_update(self._state, client, message, turn, _stream(client))
            except UserError:
                if turn < self.planned:
                    raise
                shown += [0.0] * (len(shown) // turn)
            else:
                shown += self.read(turn, update.message)
        return shown


def attack_on(method: Exchange[Any], client: Client) -> Attack:
    """The attack that suits the mechanism of this client."""
    client = replace(
        client,
        train=client.train.take(torch.zeros(_RECORDS, dtype=torch.int64)),
        alignment=client.alignment[:_POINTS],
        model=ModelSettings("fedbnn.audit.attacks:BySize"),
        training=TrainingSettings(local_epochs=1, warmup_epochs=0, batch_size=_RECORDS + 1),
        fingerprint="",  # these are other records
    )
    mechanism = client.privacy.mechanism
    if not client.privacy.on:
        raise UserError(f"privacy.mechanism = '{mechanism}': nothing is promised that could be refuted")
    if mechanism not in _ATTACKS:
        raise UserError(
            f"privacy.mechanism = '{mechanism}': there is no attack on it yet (there is on {', '.join(_ATTACKS)})"
        )
    return _ATTACKS[mechanism](method, client)


def _stream(client: Client) -> Stream:
    return Stream((client.seed, "audit"))


def _with_canary(client: Client, factor: float = 1.0) -> Client:
    """The client with one record more: like the others, times a factor, of another class."""
    x, y = client.train.x, client.train.y
    records = Records(torch.cat([x, x[:1] * factor]), torch.cat([y, (y[:1] + 1) % client.classes]))
    return replace(client, train=records)


def _public_part(client: Client) -> tuple[Public, Shape]:
    features = public(client.alignment, client.privacy.features, client.privacy.dimensions)
    return features, Shape(features.map.dimensions, client.classes)


def _attack_on_sums(method: Exchange[Any], client: Client) -> Attack:
    present, planned = _with_canary(client), client.privacy.planned(client.rounds)
    features, shape = _public_part(client)
    phi, y = features.map(present.train.x[-1:]), present.train.y[-1:]
    heads = []
    for turn in range(planned + 1):
        wrong = (int(y) + 1 + turn % (shape.classes - 1)) % shape.classes
        head = shape.empty()
        head[:, wrong] = (_SURE + turn) * phi[0]
        heads.append(head)
    moved = [contributions(phi, y, head, shape)[0] for head in heads]

    def read(turn: int, reply: Message) -> list[float]:
        sums = reply.arrays["sums"].double() * UNIT
        return [float(sums @ row / row.norm()) for row in (moved[turn], moved[(turn + 1) % len(moved)])]

    return Attack(method, client, present, tuple(Message({"head": head}) for head in heads), planned, read)


def _attack_on_teacher(method: Exchange[Any], client: Client) -> Attack:
    present = _with_canary(client)
    weights = _canary_in_logits(present)
    a, b = int(present.train.y[0]), int(present.train.y[-1])

    def read(_: int, reply: Message) -> list[float]:
        logits = reply.arrays["phi"].double().clamp_min(torch.finfo(torch.float32).tiny).log()
        moved = weights @ (logits - logits.mean(1, keepdim=True))
        return [float(moved[b]), float(moved[b] - moved[a])]  # of the first release, and nearly so of later ones

    return Attack(method, client, present, (Message(), Message()), 1, read)


def _canary_in_logits(client: Client) -> Tensor:
    """Weights of the alignment points that give the canary's features' part of a sum from a head's logits there.

    With phi_A the features of the m points, V and g the eigenvectors and -values of G = phi_A^T phi_A / m, a sum S
    becomes the head W = V f V^T S and this the logits phi_A W, so phi^T S = phi^T V (m g f)^-1 V^T phi_A^T (phi_A W).
    """
    features, shape = _public_part(client)
    sd = client.privacy.plan(client.rounds, client.multiplicity).noise_multiplier * shape.sensitivity
    values, vectors = features.moments
    total = torch.zeros(shape.numbers, dtype=torch.float64)
    total[-1] = shape.count_weight * len(client.train)  # f depends on it; the true one has noise
    total[:-1].view(shape.features, shape.classes)[:, 0] = vectors.sum(1)  # all directions at once: f is what is left
    filtered = vectors.T @ improved(shape.empty(), total, sd, features.moments, shape, TEACHER)[:, 0].double()
    kept = values > _FAINT * values.max()
    phi = features.map(client.train.x[-1:])[0].double()
    undone = (phi @ vectors)[kept] / (len(features.phi) * values * filtered)[kept]
    return undone @ vectors[:, kept].T @ features.phi.double().T


class BySize(nn.Module):
    """A model that sees only how large the numbers of a record are: a weight for each class, times their mean size."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        return _GAIN * x.flatten(1).abs().mean(1, keepdim=True) * self.weight


def _attack_on_outputs(method: Exchange[Any], client: Client) -> Attack:
    training = TrainingSettings(local_epochs=_STEPS, warmup_epochs=_STEPS, batch_size=_RECORDS + 1)
    client = replace(client, training=training)
    present, planned = _with_canary(client, _BLOWN_UP), client.privacy.planned(client.rounds)
    moved = (_outputs(method, present) - _outputs(method, client)).double().flatten()
    moved /= moved.norm().clamp_min(math.ulp(1.0))

    def read(_: int, reply: Message) -> list[float]:
        return [float(reply.arrays["phi"].double().flatten() @ moved)]

    return Attack(method, client, present, (Message(),) * (planned + 1), planned, read)


def _outputs(method: Exchange[Any], client: Client) -> Tensor:
    """The outputs without noise, which the adversary can work out: training is the same every time."""
    method, client = replace(method, consensus="mean_probabilities"), replace(client, privacy=PrivacySettings())
    update = method.client_update(method.client_init(client), client, Message(), 0, _stream(client))
    return update.message.arrays["phi"]


_ATTACKS: dict[str, Callable[[Exchange[Any], Client], Attack]] = {
    "dp_moments": _attack_on_sums,
    "dp_teacher": _attack_on_teacher,
    "output_perturbation": _attack_on_outputs,
}
