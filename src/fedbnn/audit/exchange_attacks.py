"""Attacks on clients that exchange outputs: how a server finds out whether a record is there.

Two worlds differ in one record, the canary. The adversary is the server. It knows everything but the world and the
noise, has chosen the records (as many as the client has, 250 at most, all of them its first one, of class a; the canary
is one more, said to be of class b), and sees what leaves the client. It asks for one reply more than was planned, which
the client must refuse, or repeat what it said before.

- dp_moments            It sends heads that are sure of a wrong class for the canary, another class each round, so that
                        the canary's gradient is as long as it can be before it is shortened. In each reply it measures
                        the canary's own contribution to the sum and, in case noise is used twice, the next round's.
- dp_teacher            From the class probabilities it solves for the head, and undoes the filter through which the
                        sum became the head. Of several releases it sees the last head only: their sum, nearly.
- output_perturbation   The canary's numbers are blown up, and the personal model is one that such a record turns
                        around, so that every output changes from a to b.

What is left out of a client's turn: the personal network has no part in what the first two send, so it is one of a few
weights (`BySize`) with no epoch of training in the warm-up and one afterwards. In the third it is what is released,
and trained for five epochs in the first turn of each trial; in later turns the same network is not trained anew, and a
turn is the method's `upload` alone. Of the alignment set 200 points are used. Release gates, ledgers and noise are
those of every run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbnn.audit.attack import Answer, Attack, Reading
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.data.identity import identify
from fedbnn.features.public import Public, public
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, Update
from fedbnn.federation.parties import Client
from fedbnn.methods.exchange import Exchange
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.bayes import Prediction
from fedbnn.models.regression import of_classes
from fedbnn.models.training import Records, TrainingSettings
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.head import TEACHER, Shape, contributions, improved
from fedbnn.privacy.sums import UNIT

MOST_RECORDS = 250  # more of the same would only take longer
_POINTS = 200  # of the alignment set, likewise
_STEPS = 5  # of local training, where it matters
_SURE = 1e4  # logit of a head that is sure
_BLOWN_UP = 1e4
_GAIN = 1e6  # a few steps of training make `BySize` sure
_FAINT = 1e-4  # directions of the alignment set with a smaller part of the first one's moment are not solved for


def attack_on_exchange(method: Exchange[Any], client: Client, facts: bool) -> Attack:
    """The attack that suits the mechanism of this client; `facts`: whether diagnostics leave, too."""
    count = min(len(client.train), MOST_RECORDS)
    client = replace(
        client,
        train=client.train.take(torch.zeros(count, dtype=torch.int64)),
        alignment=client.alignment[:_POINTS],
        model=ModelSettings(f"{__name__}:BySize"),
        training=TrainingSettings(local_epochs=1, warmup_epochs=0, batch_size=count + 1),
        identity=None,  # these are other records
    )
    mechanism = client.privacy.mechanism
    if mechanism not in _ATTACKS:
        raise UserError(
            f"privacy.mechanism = '{mechanism}': there is no attack on it yet (there is on {', '.join(_ATTACKS)})"
        )
    return _ATTACKS[mechanism](method, client, facts)


def answers(
    method: Method[Any, Any],
    worlds: tuple[Client, Client],
    messages: Sequence[Message],
    rounds: Sequence[int],
    facts: bool,
) -> Callable[[bool, int, Path], Answer]:
    """Turns of a client, without and with the canary, each from the state in which a client begins."""
    worlds = (_identified(worlds[0]), _identified(worlds[1]))

    @cache
    def state() -> Any:
        return method.client_init(worlds[0])  # no record has a part in it

    def answer(present: bool, turn: int, ledgers: Path) -> Answer:
        client = replace(worlds[present], ledgers=ledgers)
        update = method.client_update(state(), client, messages[turn], rounds[turn], _stream(client))
        return Answer(update.message, update.info if facts else {})

    return answer


def _identified(client: Client) -> Client:
    """The same, with the hashes of its records, which would otherwise be worked out in every turn."""
    labels = [str(label) for label in client.train.y.tolist()]
    return replace(client, identity=torch.from_numpy(identify(client.train.x.numpy(), labels)))


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


def _attack_on_sums(method: Exchange[Any], client: Client, facts: bool) -> Attack:
    if client.privacy.secure:
        remains = client.privacy.cap(client.rounds, client.multiplicity, client.clients).epsilon
        raise UserError(
            "privacy.aggregation = 'secure': what a client sends is masked and tells nothing; to try what remains "
            f"without masks, set it to 'plain' and privacy.epsilon = {remains:.4g}"
        )
    present, planned = _with_canary(client), client.privacy.planned(client.rounds)
    features, shape = _public_part(client)
    phi, labels = features.map(present.train.x[-1:]), present.train.y[-1:]
    y = int(labels)
    heads = []
    for turn in range(planned + 1):
        wrong = (y + 1 + turn % (shape.classes - 1)) % shape.classes
        head = shape.empty()
        head[:, wrong] = (_SURE + turn) * phi[0]
        heads.append(head)
    moved = [contributions(phi, labels, head, shape)[0] for head in heads]
    others = [len(client.train) * contributions(phi, present.train.y[:1], head, shape)[0] for head in heads]

    def read(turn: int, reply: Message) -> Reading:
        noise = reply.arrays["sums"].double() * UNIT - others[turn]
        looks = [float(noise @ row / row.norm()) for row in (moved[turn], moved[(turn + 1) % len(moved)])]
        return Reading(looks, float(noise.square().mean()))

    messages = [Message({"head": head}) for head in heads]
    turns = range(len(heads))
    return Attack(len(heads), planned, answers(method, (client, present), messages, turns, facts), read, 2)


def _attack_on_teacher(method: Exchange[Any], client: Client, facts: bool) -> Attack:
    present = _with_canary(client)
    weights = _canary_in_logits(present)
    a, b = int(present.train.y[0]), int(present.train.y[-1])
    expected = _logits(_teacher_without_noise(client))

    def read(_: int, reply: Message) -> Reading:
        logits = _logits(reply.arrays["phi"])
        moved = weights @ logits
        return Reading([float(moved[b]), float(moved[a])], float((logits - expected).square().mean()))

    return Attack(2, 1, answers(method, (client, present), [Message()] * 2, (0, 1), facts), read, 2)


def _logits(probabilities: Tensor) -> Tensor:
    logits = probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    return logits - logits.mean(1, keepdim=True)


def _deviation(client: Client, shape: Shape) -> float:
    return client.privacy.plan(client.rounds, client.multiplicity).noise_multiplier * shape.sensitivity


def _teacher_without_noise(client: Client) -> Tensor:
    """What the client would send, were there no noise."""
    features, shape = _public_part(client)
    phi, head = features.map(client.train.x[:1]), shape.empty()
    for _ in range(client.privacy.planned(client.rounds)):
        total = len(client.train) * contributions(phi, client.train.y[:1], head, shape)[0]
        head = improved(head, total, _deviation(client, shape), features.moments, shape, TEACHER)
    return features.outputs(head)


def _canary_in_logits(client: Client) -> Tensor:
    """Weights of the alignment points that give the canary's features' part of a sum from a head's logits there.

    With phi_A the features of the m points, V and g the eigenvectors and -values of G = phi_A^T phi_A / m, a sum S
    becomes the head W = V f V^T S and this the logits phi_A W, so phi^T S = phi^T V (m g f)^-1 V^T phi_A^T (phi_A W).
    """
    features, shape = _public_part(client)
    values, vectors = features.moments
    total = torch.zeros(shape.numbers, dtype=torch.float64)
    total[-1] = shape.count_weight * len(client.train)  # f depends on it; the true one has noise
    total[:-1].view(shape.features, shape.classes)[:, 0] = vectors.sum(1)  # all directions at once: f is what is left
    head = improved(shape.empty(), total, _deviation(client, shape), features.moments, shape, TEACHER)
    filtered = vectors.T @ head[:, 0].double()
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


def _attack_on_outputs(method: Exchange[Any], client: Client, facts: bool) -> Attack:
    count = len(client.train)
    training = TrainingSettings(local_epochs=_STEPS, warmup_epochs=_STEPS, batch_size=count + 1)
    client = replace(client, training=training)
    present, planned = _with_canary(client, _BLOWN_UP), client.privacy.planned(client.rounds)
    expected = _outputs(method, client)
    moved = (_outputs(method, present) - expected).double().flatten()
    moved /= moved.norm().clamp_min(math.ulp(1.0))

    def read(_: int, reply: Message) -> Reading:
        noise = (reply.arrays["phi"] - expected).double().flatten()
        return Reading([float(noise @ moved)], float(noise.square().mean()))

    turns = range(planned + 1)
    whole = answers(method, (client, present), [Message()] * len(turns), turns, facts)
    worlds = (_identified(client), _identified(present))
    trained = [_trained(method, one) for one in worlds]

    def answer(present_here: bool, turn: int, ledgers: Path) -> Answer:
        if turn == 0 or facts:
            return whole(present_here, turn, ledgers)
        one = replace(worlds[present_here], ledgers=ledgers)
        state, prediction = trained[present_here]
        return Answer(method.replied(state, one, Message(), turn, lambda: prediction, {}).message)

    return Attack(len(turns), planned, answer, read, 1)


def _without_noise(method: Exchange[Any], client: Client) -> Update[Any]:
    """A turn without noise, which the adversary can work out: training is the same every time."""
    method, client = replace(method, consensus="mean_probabilities"), replace(client, privacy=PrivacySettings())
    return method.client_update(method.client_init(client), client, Message(), 0, _stream(client))


def _outputs(method: Exchange[Any], client: Client) -> Tensor:
    return _without_noise(method, client).message.arrays["phi"]


def _trained(method: Exchange[Any], client: Client) -> tuple[Any, Prediction]:
    """The personal model, and what it says of the alignment set."""
    state = _without_noise(method, client).state
    return state, of_classes(method.predict(state, client, client.alignment, _stream(client).child("upload")))


_ATTACKS: dict[str, Callable[[Exchange[Any], Client, bool], Attack]] = {
    "dp_moments": _attack_on_sums,
    "dp_teacher": _attack_on_teacher,
    "output_perturbation": _attack_on_outputs,
}
