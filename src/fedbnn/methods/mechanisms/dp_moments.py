"""dp_moments: clients send noisy sums over their records, and the server fits one small model for all.

A round is one step of the common head W (`privacy.head`), with the sum of what clients sent, as often as the budget was
divided. Sums are whole numbers that add up exactly. The consensus is W's output on the alignment set.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedbnn.features.public import Public, public
from fedbnn.federation.message import Integers, Message, UploadSpec
from fedbnn.federation.method import Client, Roster
from fedbnn.methods.mechanisms.dp_teacher import release_of_sums
from fedbnn.methods.mechanisms.mechanism import ConsensusState, ExchangeMechanism, Join
from fedbnn.privacy.head import MOMENTS, Shape, improved
from fedbnn.privacy.mechanism import Release, Sizes
from fedbnn.privacy.sums import LARGEST, UNIT


@dataclass(frozen=True, kw_only=True)
class CommonHead(ConsensusState):
    """The head of all clients, and how many steps it has left."""

    head: Tensor  # features x classes
    left: Tensor  # one whole number

    def message(self) -> Message:
        """The head as long as sums at it are wanted, beside the consensus."""
        asked = {"head": self.head} if int(self.left) > 0 else {}
        return Message({**super().message().arrays, **asked})


class DPMoments(ExchangeMechanism):
    """Noisy sums, joined into one small model."""

    name = "dp_moments"
    summary = "noisy sums over records, from which the server fits one small model for all"
    sent = (
        "Sums over the client's records that have noise on every number; from all clients' sums the server fits one "
        "small model."
    )
    rule = "mean_probabilities"

    def release(self, sizes: Sizes) -> Release:
        return release_of_sums(sizes, joined=True)

    def upload(self, client: Client, message: Message, round_number: int, outputs: Callable[[], Tensor]) -> Message:
        gate, head = client.gate, message.get("head")
        if head is None:  # the server has all it wants
            return Message({"sums": torch.zeros(gate.shape.numbers, dtype=torch.int64)})
        return Message({"sums": gate.sums(head)})

    def expected_upload(self, roster: Roster) -> UploadSpec:
        return {"sums": Integers((_shape(_public(roster), roster).numbers,), LARGEST)}

    def server_init(self, roster: Roster) -> ConsensusState:
        left = torch.tensor([roster.privacy.planned(roster.rounds)])
        return CommonHead(head=_shape(_public(roster), roster).empty(), left=left)

    def server_update(
        self, state: ConsensusState, replies: Mapping[int, Message], roster: Roster, join: Join
    ) -> ConsensusState:
        assert isinstance(state, CommonHead)
        if int(state.left) == 0 or not replies:
            return state
        features = _public(roster)
        shape, plan = _shape(features, roster), roster.privacy.plan(roster.rounds, 1)
        total = torch.stack([reply.arrays["sums"] for reply in replies.values()]).sum(0)
        sd = plan.noise_multiplier * shape.sensitivity * math.sqrt(len(replies))
        head = improved(state.head, total * UNIT, sd, features.moments, shape, MOMENTS)
        return replace(state, head=head, left=state.left - 1, phi_bar=features.outputs(head))


def _public(roster: Roster) -> Public:
    return public(roster.alignment, roster.privacy.features, roster.privacy.dimensions)


def _shape(features: Public, roster: Roster) -> Shape:
    return Shape(features.map.dimensions, roster.classes)
