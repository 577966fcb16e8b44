"""A part of the alignment set (AD) a round: with large sets, messages are otherwise as large.

In round t clients are told the consensus on a part P_t of AD, learn from it there, and answer on a part A_t. Both are
the server's choice, the same for all clients; messages name the points. What was answered last is told next, so that
clients hear nothing that is older than it would be on all of AD:

    P_t+1 = A_t,        A_t+1 is chosen when the answers of round t are in

- random      every part of that size is as likely as any other
- disputed    the points where clients' latest answers are furthest apart: by the variance over clients of their
              probabilities, summed over classes; in regression by that of their means

The warm-up asks for all points, as does any message to a client that has not answered yet: so the server has an answer
of every client at every point, the latest, and joins these. Where nobody is asked, answers stay, and the consensus.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.models.training import take_rows

Choice = Literal["random", "disputed"]

TOLD, ASKED = "points", "asked"  # what messages call the lists of points


def dispute(phi: Tensor, *, logits: bool, regression: bool) -> Tensor:
    """How far clients' answers, clients x points x outputs, are apart at each point."""
    said = phi.double()
    if regression:
        said = said[..., :1]
    elif logits:
        said = said.softmax(-1)
    return said.var(0, correction=0).sum(-1)


def random_part(points: int, size: int, rng: Stream) -> Tensor:
    """So many of the points, in ascending order."""
    return torch.randperm(points, generator=rng.on_cpu().torch())[:size].sort().values


def most_disputed(apart: Tensor, size: int) -> Tensor:
    """So many points where answers are furthest apart, in ascending order; of equals the first."""
    return apart.sort(descending=True, stable=True).indices[:size].sort().values


def part_at(client: Client, message: Message, name: str) -> Client:
    """The client with the points of its alignment set that the message names; all of them if it names none.

    A list that no honest server sends is refused.
    """
    named, points = message.get(name), len(client.alignment)
    if named is None:
        return client
    if named.dtype != torch.int64 or named.dim() != 1 or not 1 <= len(named) <= points:
        raise UserError(f"'{name}' of a message is no list of 1 to {points} alignment points")
    if int(named[0]) < 0 or int(named[-1]) >= points or bool((named[1:] <= named[:-1]).any()):
        raise UserError(f"'{name}' of a message: alignment points are 0 to {points - 1}, each once, in ascending order")
    told = message.get("phi_bar")
    if name == TOLD and (told is None or len(told) != len(named)):
        raise UserError(f"a message names {len(named)} alignment points and has no consensus on as many")
    return replace(client, alignment=take_rows(client.alignment, named.to(client.device)))
