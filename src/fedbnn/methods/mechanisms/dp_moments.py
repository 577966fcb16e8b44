"""dp_moments: clients send noisy sums over their records, and the server fits one small model for all.

A round is one step of the common head W (`privacy.head`), with the sum of what clients sent, as often as the budget was
divided. Sums are whole numbers that add up exactly, so the server need not see any of them: with secure aggregation it
sees the total alone (`aggregation`). The consensus is W's output on the alignment set.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.features.public import Public, public
from fedbnn.federation.message import Integers, Message, UploadSpec
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.consensus import Rule
from fedbnn.methods.mechanisms.aggregation import (
    answer_spec,
    answered,
    data,
    phase_of,
    question,
    session_of,
    taken,
    words,
)
from fedbnn.methods.mechanisms.dp_teacher import release_of_sums
from fedbnn.methods.mechanisms.mechanism import ConsensusState, ExchangeMechanism, Join
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.head import MOMENTS, Shape, improved
from fedbnn.privacy.mechanism import Release, Sizes
from fedbnn.privacy.secure.server_half import ServerHalf
from fedbnn.privacy.secure.session import Phase
from fedbnn.privacy.sums import RELEASED, UNIT


@dataclass(frozen=True, kw_only=True)
class CommonHead(ConsensusState):
    """The head of all clients, and how many steps it has left."""

    head: Tensor  # features x classes
    left: Tensor  # one whole number
    aggregation: Tensor | None = None  # the server's half of the secure aggregation at this head, as words

    def message(self) -> Message:
        """The head as long as sums at it are wanted, beside the consensus."""
        asked = {"head": self.head} if int(self.left) > 0 else {}
        return Message({**super().message().arrays, **asked})

    def message_to(self, client: int) -> Message:
        half = self.half
        if half is None:
            return self.message()
        asked = question(half, self.head, client)
        return Message(asked if half.begun else {**self.message().arrays, **asked})

    @property
    def half(self) -> ServerHalf | None:
        return None if self.aggregation is None else ServerHalf.from_bytes(data(self.aggregation))

    @property
    def still_asked(self) -> Sequence[int]:
        return self.half.asked if self.half and self.half.begun else ()

    @property
    def least_replies(self) -> int:
        return self.half.session.threshold if self.half else 0

    def improved(self, total: Tensor, sd: float, roster: Roster) -> "CommonHead":
        """The state after one step with a sum, in units, on whose numbers lies noise of this deviation."""
        features = _public(roster)
        head = improved(self.head, total * UNIT, sd, features.moments, _shape(features, roster), MOMENTS)
        new = replace(self, head=head, left=self.left - 1, phi_bar=features.outputs(head), aggregation=None)
        return new.begun(roster)

    def begun(self, roster: Roster) -> "CommonHead":
        """The state in which the next sum is asked for, by secure aggregation if that was agreed on."""
        if not roster.privacy.secure or int(self.left) == 0:
            return self
        session = session_of(roster, self.head, _shape(_public(roster), roster).numbers)
        return replace(self, aggregation=words(ServerHalf.begin(session).to_bytes()))


class DPMoments(ExchangeMechanism):
    """Noisy sums, joined into one small model."""

    name = "dp_moments"
    summary = "noisy sums over records, from which the server fits one small model for all"
    sent = (
        "Sums over the client's records that have noise on every number; from all clients' sums the server fits one "
        "small model."
    )
    rule = "mean_probabilities"
    asks_outputs = False
    adds_up = True

    def release(self, sizes: Sizes) -> Release:
        return release_of_sums(sizes, joined=True)

    def upload(self, client: Client, message: Message, round_number: int, outputs: Callable[[], Tensor]) -> Message:
        gate, head = client.gate, message.get("head")
        if head is None:  # the server has all it wants
            return Message({"sums": torch.zeros(gate.shape.numbers, dtype=torch.int64)})
        return Message({"sums": gate.sums(head)})

    def exchange_of(self, message: Message, privacy: PrivacySettings) -> int:
        return phase_of(message) if privacy.secure and message.get("head") is not None else 0

    def reply(
        self,
        memory: Tensor | None,
        client: Client,
        message: Message,
        round_number: int,
        outputs: Callable[[], Tensor],
    ) -> tuple[Message, Tensor | None]:
        if not client.privacy.secure:
            return self.upload(client, message, round_number, outputs), None
        gate, head = client.gate, message.get("head")
        if head is None:  # the server has all it wants
            return Message(), None
        shape = gate.shape
        shares = client.privacy.shares(client.rounds, client.multiplicity, client.clients)
        if not shares.joined_cost(shape.sensitivity, shape.numbers).fits(client.privacy.joined_budget):
            raise UserError("privacy.aggregation = 'secure': the noise is too coarse to be accounted for")
        session = session_of(client, head, shape.numbers)
        return answered(memory, client, message, session, lambda occasion: gate.sums(head, occasion))

    def expected_upload(self, roster: Roster, rule: Rule) -> UploadSpec:
        return {"sums": Integers((_shape(_public(roster), roster).numbers,), RELEASED)}

    def server_init(self, roster: Roster) -> ConsensusState:
        left = torch.tensor([roster.privacy.planned(roster.rounds)])
        return CommonHead(head=_shape(_public(roster), roster).empty(), left=left).begun(roster)

    def expected_reply(self, roster: Roster, message: Message, rule: Rule) -> UploadSpec:
        if not roster.privacy.secure:
            return self.expected_upload(roster, rule)
        head = message.get("head")
        if head is None:
            return {}
        return answer_spec(session_of(roster, head, _shape(_public(roster), roster).numbers), phase_of(message))

    def server_update(
        self, state: ConsensusState, replies: Mapping[int, Message], roster: Roster, join: Join
    ) -> ConsensusState:
        assert isinstance(state, CommonHead)
        half = state.half
        if half is None and (int(state.left) == 0 or not replies):
            return state
        plan = roster.privacy.plan(roster.rounds, roster.multiplicity, roster.clients)
        sd = plan.noise_multiplier * _shape(_public(roster), roster).sensitivity
        if half is None:
            total = torch.stack([reply.arrays["sums"] for reply in replies.values()]).sum(0)
            return state.improved(total, sd * math.sqrt(len(replies)), roster)
        half = taken(half, replies)
        if half.phase < Phase.DONE:
            return replace(state, aggregation=words(half.to_bytes()))
        return state.improved(torch.from_numpy(half.total()), sd * math.sqrt(len(half.survivors)), roster)


def _public(roster: Roster) -> Public:
    return public(roster.alignment, roster.privacy.features, roster.privacy.dimensions)


def _shape(features: Public, roster: Roster) -> Shape:
    return Shape(features.map.dimensions, roster.classes)
