"""What a mechanism is to a method that exchanges outputs: what is sent, expected and joined."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedbnn.federation.message import Form, Message, Numbers, UploadSpec
from fedbnn.federation.method import State
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.consensus import Rule, output_form
from fedbnn.methods.part import ASKED, TOLD
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.mechanism import Mechanism

Join = Callable[[Tensor], Tensor]
"""From a stack of clients' outputs, clients x points x classes, to the consensus, points x classes."""


@dataclass(frozen=True, kw_only=True)
class ConsensusState(State):
    """The server's memory: at least the consensus on the alignment set, once there is one."""

    phi_bar: Tensor | None = None  # points x classes

    def message(self) -> Message:
        """What every client receives at the start of the next round."""
        return Message({} if self.phi_bar is None else {"phi_bar": self.phi_bar})

    def message_to(self, client: int) -> Message:
        """What this client receives next."""
        return self.message()

    def without(self, client: int) -> "ConsensusState":
        """The same without what is remembered of a client that is set aside."""
        return self

    @property
    def still_asked(self) -> Sequence[int]:
        """Clients that are to be asked once more before the round is over."""
        return ()

    @property
    def least_replies(self) -> int:
        """With fewer replies an exchange has to be held again."""
        return 0


class ExchangeMechanism(Mechanism):
    """Protects the exchange of outputs on the alignment set."""

    rule: ClassVar[Rule | None] = None
    """How outputs are joined; None: as the method's settings say."""
    asks_outputs: ClassVar[bool] = True
    """Whether it sends what the client's model says, or has a model of its own."""

    @abstractmethod
    def upload(self, client: Client, message: Message, round_number: int, outputs: Callable[[], Tensor]) -> Message:
        """What leaves the client; `outputs` gives what would speak for it on the alignment set without protection."""

    def exchange_of(self, message: Message, privacy: PrivacySettings) -> int:
        """Which exchange of its round a message asks for, counted from 0; a client learns in that one only."""
        return 0

    def reply(
        self,
        memory: Tensor | None,
        client: Client,
        message: Message,
        round_number: int,
        outputs: Callable[[], Tensor],
    ) -> tuple[Message, Tensor | None]:
        """What leaves the client, and what it remembers until it is asked again in the same round.

        `memory` is what it remembered the last time.
        """
        return self.upload(client, message, round_number, outputs), None

    @abstractmethod
    def expected_upload(self, roster: Roster, rule: Rule) -> UploadSpec:
        """Names and forms of that, where outputs are joined by this rule."""

    def expected_reply(self, roster: Roster, message: Message, rule: Rule) -> UploadSpec:
        """The same, of the answer to this message, in a round of several exchanges."""
        return self.expected_upload(roster, rule)

    @abstractmethod
    def server_init(self, roster: Roster) -> ConsensusState:
        """The server's memory before anything has happened; raises a UserError where the mechanism makes no sense."""

    @abstractmethod
    def server_update(
        self, state: ConsensusState, replies: Mapping[int, Message], roster: Roster, join: Join
    ) -> ConsensusState:
        """Take in the replies of the clients that took part; `join` makes outputs a consensus."""


@dataclass(frozen=True, kw_only=True)
class Uploads(ConsensusState):
    """Every client's latest output on the alignment set.

    Where a round is about a part of it (`fedbnn.methods.part`), also which points are told and asked next.
    """

    phi: Tensor  # clients x points x classes; zeros for a client that has sent nothing yet
    received: Tensor  # clients: whether it has sent anything that is used
    belief: Tensor | None = None  # of what adds up, the latest that each believes, where robust rules ask for it
    told: Tensor | None = None  # points, in ascending order; None: all
    asked: Tensor | None = None  # points of those that have answered before; None: all

    def asked_of(self, client: int) -> Tensor | None:
        """The points that this client is asked about; None: all of them."""
        return self.asked if bool(self.received[client]) else None

    def message_to(self, client: int) -> Message:
        if self.told is None:
            return self.message()
        return self._whole if self.asked_of(client) is None else self._part

    # Made once, so that all clients are sent the same piece of memory.

    @cached_property
    def _whole(self) -> Message:
        assert self.phi_bar is not None
        assert self.told is not None
        return Message({"phi_bar": self.phi_bar[self.told], TOLD: self.told})

    @cached_property
    def _part(self) -> Message:
        assert self.asked is not None
        return Message({**self._whole.arrays, ASKED: self.asked})

    def heard(self, replies: Mapping[int, Message]) -> Tensor:
        """Which clients something is known of with these replies."""
        received = self.received.clone()
        received[list(replies)] = True
        return received

    def beliefs(self, replies: Mapping[int, Message]) -> Tensor:
        """What each client believes, f_i = sent_i - site_i, whose site is what it sent before beyond the consensus."""
        known = self.phi.clone() if self.belief is None else self.belief.clone()
        for client, reply in replies.items():
            before = self.phi_bar is not None and bool(self.received[client])
            site = self.phi[client] - self.phi_bar if before and self.phi_bar is not None else 0.0
            known[client] = reply.arrays["phi"] - site
        return known

    def without(self, client: int) -> "Uploads":
        """The consensus forgets it with the next reply of anybody."""
        phi, received = self.phi.clone(), self.received.clone()
        phi[client], received[client] = 0.0, False
        return replace(self, phi=phi, received=received)


class OutputsMechanism(ExchangeMechanism):
    """Clients send class scores on the alignment set; the server joins the latest of every client."""

    def expected_upload(self, roster: Roster, rule: Rule) -> UploadSpec:
        return {"phi": _form(len(roster.alignment), roster, rule)}

    def expected_reply(self, roster: Roster, message: Message, rule: Rule) -> UploadSpec:
        asked = message.get(ASKED)
        return self.expected_upload(roster, rule) if asked is None else {"phi": _form(len(asked), roster, rule)}

    def server_init(self, roster: Roster) -> ConsensusState:
        phi = torch.zeros(roster.clients, len(roster.alignment), roster.outputs)
        return Uploads(phi=phi, received=torch.zeros(roster.clients, dtype=torch.bool))

    def server_update(
        self, state: ConsensusState, replies: Mapping[int, Message], roster: Roster, join: Join
    ) -> ConsensusState:
        assert isinstance(state, Uploads)
        phi, received = state.phi.clone(), state.received.clone()
        for client, reply in replies.items():
            asked = state.asked_of(client)
            phi[client, slice(None) if asked is None else asked], received[client] = reply.arrays["phi"], True
        if not bool(received.any()):
            return state
        return replace(state, phi=phi, received=received, phi_bar=join(phi[received]))


def _form(points: int, roster: Roster, rule: Rule) -> Form:
    """Of outputs on so many points."""
    shape = (points, roster.outputs)
    return Numbers(shape) if roster.regression else output_form(rule, shape)
