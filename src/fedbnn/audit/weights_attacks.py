"""Attacks on noisy sums of gradients: whether a record is in those of a client, or a client in the server's sum.

Record level. The adversary is the server, which has chosen the model (one linear layer), the records (as many as the
client has, 20 at most, all zeros, of class a; the canary is one more of class b) and the weights that it sends: only
the layer's biases count for such records, and that of a is so large that the gradient of all others vanishes, whatever
noise there is. The canary's is e_a - e_b in every step, longer than C for the default C, so it is a canary in gradient
space: the sum of a round's noisy gradients has C times the number of steps that drew it along a known direction. It is
what DP-FedAvg's weights moved by, what DP-FedSGD sends as it is, and DP-SCAFFOLD's control variate. Single steps of
several are not seen, so of subsampled steps a little is lost.

In the end it asks for a round beyond the plan, and for the last round once more with other weights: both must be
refused, or must not be of any use.

User level. The adversary sees every model that the server sends out, and has chosen the updates: zero of all clients
but one, whose update is far too long and must be shortened. Whether that one took part is the question. A round
beyond the plan must be refused. Nothing of clients' local training is run.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbnn.audit.attack import Answer, Attack, Reading
from fedbnn.audit.exchange_attacks import answers
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Global
from fedbnn.methods.dp_fedavg import DPFedAvg
from fedbnn.methods.dp_scaffold import DPScaffold
from fedbnn.methods.noisy_sums import NoisySums
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import Records
from fedbnn.privacy.sums import UNIT

_MOST_RECORDS = 20  # each one's gradient takes its time, and the others' are zero; fewer hide no better
_SURE = 1e3  # bias of a class that is sure, with noise on it or not
_TOO_LONG = 100.0  # times C
_NUMBERS = 4096  # of a model at user level: enough for the size of the noise to be seen


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), classes))


def attack_on_weights(method: NoisySums[Any, Any], client: Client, roster: Roster, facts: bool) -> Attack:
    """The attack that suits what this method hides; `facts`: whether diagnostics leave, too."""
    if isinstance(method, DPFedAvg) and method.unit == "client":
        return _on_sum(method, roster)
    return _on_steps(method, client, facts)


def _on_steps(method: NoisySums[Any, Any], client: Client, facts: bool) -> Attack:
    count, a, b = min(len(client.train), _MOST_RECORDS), 0, 1
    x, y = torch.zeros_like(client.train.x[:1]), torch.tensor([a, b])
    client = replace(
        client,
        train=Records(x.expand(count, *x.shape[1:]).contiguous(), y[:1].repeat(count)),
        model=ModelSettings(f"{__name__}:linear"),
        identity=None,  # these are other records
    )
    present = replace(client, train=Records(torch.cat([client.train.x, x]), torch.cat([client.train.y, y[1:]])))
    size = client.network.size
    direction = torch.zeros(size, dtype=torch.float64)
    direction[size - client.classes + a], direction[size - client.classes + b] = 0.5**0.5, -(0.5**0.5)
    rounds = [*range(client.rounds + 1), client.rounds + 1, client.rounds]
    starts = [_sure(size, client.classes, a, turn) for turn in range(len(rounds))]

    def read(turn: int, reply: Message) -> Reading:
        moved = _gradient(starts[turn], reply)
        return Reading([float(moved @ direction)], float(moved.square().mean()))

    also = {"control": torch.zeros(size)} if isinstance(method, DPScaffold) else {}
    messages = [Message({"weights": start, **also}) for start in starts]
    turns = answers(method, (client, present), messages, rounds, facts)
    return Attack(len(rounds), client.rounds + 1, turns, read, 1)


def _gradient(start: Tensor, reply: Message) -> Tensor:
    """What a reply tells of the sum of its noisy gradients, up to a factor."""
    if "sum" in reply.arrays:
        return reply.arrays["sum"].double() * UNIT
    return (reply.arrays["control"] if "control" in reply.arrays else start - reply.arrays["weights"]).double()


def _sure(size: int, classes: int, a: int, turn: int) -> Tensor:
    weights = torch.zeros(size)
    weights[size - classes + a] = _SURE + turn  # another question in each turn
    return weights


def _on_sum(method: DPFedAvg, roster: Roster) -> Attack:
    if roster.clients < 2:
        raise UserError("partition.clients = 1: at user level a client is hidden among others")
    start = torch.zeros(_NUMBERS)
    canary = start.clone()
    canary[0] = _TOO_LONG * method.clip
    others = {client: Message({"weights": start}) for client in range(1, roster.clients)}
    replies: dict[bool, dict[int, Message]] = {False: others, True: {0: Message({"weights": canary}), **others}}

    def answer(present: bool, turn: int, ledgers: Path) -> Answer:
        server, rng = replace(roster, ledgers=ledgers), Stream((roster.seed, "audit", turn))
        state = method.server_update(Global(start), replies[present], server, rng)
        return Answer(Message({"weights": state.weights}))

    def read(_: int, reply: Message) -> Reading:
        moved = reply.arrays["weights"].double()
        return Reading([float(moved[0])], float(moved[1:].square().mean()))

    return Attack(roster.rounds + 2, roster.rounds + 1, answer, read, 1)
