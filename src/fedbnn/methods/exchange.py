"""The half that FedBNN and FedMD share: exchange of outputs on the alignment set, and the server that joins them.

What leaves a client is up to the mechanism that `privacy` names (`fedbnn.methods.mechanisms`), and so is what the
server makes of it; here is what all have in common: a consensus phi_bar, and the target that a client makes of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, UploadSpec
from fedbnn.federation.method import Method, Promise, State, Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.consensus import Rule, join, output_of, target_of
from fedbnn.methods.gaussian_consensus import gaussian_target, join_gaussians
from fedbnn.methods.mechanisms import mechanism_of
from fedbnn.methods.mechanisms.mechanism import ConsensusState, Uploads
from fedbnn.methods.part import ASKED, TOLD, Choice, dispute, most_disputed, part_at, random_part
from fedbnn.methods.robust import Robust, joined
from fedbnn.models.regression import Answer, Mixture
from fedbnn.privacy import Guarantee, PrivacySettings


@dataclass(frozen=True)
class ExchangeState(State):
    """What a client of an exchange keeps beside its network."""

    memory: Tensor | None = None  # the mechanism's, between the exchanges of one round


S = TypeVar("S", bound=ExchangeState)


@settings
class Exchange(Method[S, ConsensusState]):
    """Clients send outputs on the alignment set; the server joins the latest of every client and sends that back."""

    server_state = ConsensusState
    needs_protection = False  # knows every mechanism
    regression = True

    gamma: float = Field(default=0.7, ge=0, le=1, description="trust in the consensus against the client's own output")
    consensus: Rule = Field(
        default="mean_logits",
        description="how outputs are joined: mean_logits, mean_probabilities, sharpened (a power of the mean "
        "probabilities), corrected (these divided by their average over the alignment set first; for balanced sets), "
        "by_class (clients weighted by how often they name a class, and sharpened) or projected (mean, put on the "
        "simplex); each privacy.mechanism but none has its own; in regression Gaussians are joined by precision, or "
        "with mean_probabilities as a mixture",
    )
    robust: Robust = Field(
        default="none",
        description="what stands for the mean where clients may lie: none (the mean itself), median (of each number), "
        "trimmed (mean without the extremes), geometric (median, of each point) or uncertain (clients are weighed down "
        "where they disagree by more than their own uncertainty allows)",
    )
    trim: float = Field(
        default=0.3, ge=0, lt=0.5, description="share of the clients that robust = 'trimmed' leaves out at either end"
    )
    sharpen: float = Field(default=3.0, gt=0, description="power of the sharpened, corrected and by_class consensus")
    points_per_round: int = Field(
        default=0,
        ge=0,
        description="alignment points that clients are told of, and asked about, in a round, for large alignment sets; "
        "0, or as many as there are: all of them",
    )
    points: Choice = Field(
        default="random",
        description="which these are: random, or disputed (where clients' latest answers are furthest apart)",
    )

    def check_task(self, privacy: PrivacySettings, *, regression: bool) -> None:
        super().check_task(privacy, regression=regression)
        if regression and privacy.on:
            raise UserError(
                f"privacy.mechanism = '{privacy.mechanism}' is for classification, but data.task = 'regression'; set "
                "it to none"
            )
        if regression and self.robust != "none":
            raise UserError(
                f"methods.{self.name}.robust = '{self.robust}' joins what clients say of classes, but data.task = "
                "'regression'; set it to none"
            )

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        self._check_parts(client.privacy)
        if client.privacy.on:
            client.privacy.check_records(client.name, len(client.train))
            client.privacy.plan(client.rounds, client.multiplicity, client.clients)

    def protects(self, privacy: PrivacySettings) -> Promise | None:
        return Promise(privacy.budget, "record") if privacy.on else None

    def privacy_spent(self, client: Client, turns: int) -> Guarantee | None:
        return client.gate.guarantee() if client.privacy.on else None

    def rule(self, privacy: PrivacySettings) -> Rule:
        """How outputs are joined, which the mechanism decides if it has a rule of its own."""
        return mechanism_of(privacy).rule or self.consensus

    def target(self, message: Message, client: Client, own: Callable[[], Answer]) -> Tensor | None:
        """The corrected target on the alignment set, as class probabilities; None while there is no consensus.

        In regression: as means and log variances.

        `own` is the client's own prediction there.
        """
        phi_bar = message.get("phi_bar")
        if phi_bar is None:
            return None
        rule = self.rule(client.privacy)
        phi = said(own(), rule) if self.gamma < 1 else torch.zeros_like(phi_bar)  # not worth the time
        return (gaussian_target if client.regression else target_of)(phi_bar, phi, self.gamma, rule)

    def told(self, client: Client, message: Message) -> Client:
        """The client with the points of the alignment set that this message tells the consensus of."""
        return part_at(client, message, TOLD) if self.points_per_round else client

    def asked(self, client: Client, message: Message) -> Client:
        """The client with the points of the alignment set that this message asks about."""
        return part_at(client, message, ASKED) if self.points_per_round else client

    def exchange_of(self, client: Client, message: Message) -> int:
        return mechanism_of(client.privacy).exchange_of(message, client.privacy)

    def replied(
        self,
        state: S,
        client: Client,
        message: Message,
        round_number: int,
        own: Callable[[], Answer],
        info: Mapping[str, float],
    ) -> Update[S]:
        """The end of a turn: what leaves the client; `own` is its network's prediction on the alignment set."""

        def outputs() -> Tensor:
            return said(own(), self.rule(client.privacy))

        sent, memory = mechanism_of(client.privacy).reply(state.memory, client, message, round_number, outputs)
        return Update(replace(state, memory=memory), sent, info)

    def server_init(self, roster: Roster) -> ConsensusState:
        if len(roster.alignment) == 0:
            raise UserError(
                f"method '{self.name}' exchanges outputs on the alignment set: data.alignment must be at least 1"
            )
        self.check_task(roster.privacy, regression=roster.regression)
        self._check_parts(roster.privacy)
        if self.robust != "none" and roster.privacy.on:
            raise UserError(
                f"methods.{self.name}.robust = '{self.robust}' compares what single clients say: privacy.mechanism = "
                f"'{roster.privacy.mechanism}' sends noisy outputs, or sums to be added; set one of both to none"
            )
        if self.robust != "none" and self.rule(roster.privacy) == "by_class":
            raise UserError(
                f"methods.{self.name}.robust = '{self.robust}' stands for the mean, which consensus = 'by_class' does "
                "not take; choose another consensus"
            )
        return mechanism_of(roster.privacy).server_init(roster)

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return mechanism_of(roster.privacy).expected_upload(roster, self.rule(roster.privacy))

    def server_update(
        self, state: ConsensusState, replies: Mapping[int, Message], roster: Roster, rng: Stream
    ) -> ConsensusState:
        new = self._joined(state, replies, roster)
        if not 0 < self.points_per_round < len(roster.alignment) or new.phi_bar is None:
            return new
        assert isinstance(new, Uploads)
        first = new.asked is None
        told = self._part(new, roster, rng.child("told")) if first else new.asked
        return replace(new, told=told, asked=self._part(new, roster, rng.child("asked")))

    def _part(self, state: Uploads, roster: Roster, rng: Stream) -> Tensor:
        """The points that the next exchange, or the one after it, is about."""
        if self.points == "random":
            return random_part(len(roster.alignment), self.points_per_round, rng)
        logits = self.rule(roster.privacy) == "mean_logits"
        apart = dispute(state.phi[state.received], logits=logits, regression=roster.regression)
        return most_disputed(apart, self.points_per_round)

    def _joined(self, state: ConsensusState, replies: Mapping[int, Message], roster: Roster) -> ConsensusState:
        rule, mechanism = self.rule(roster.privacy), mechanism_of(roster.privacy)
        if roster.regression:
            return mechanism.server_update(state, replies, roster, lambda phi: join_gaussians(phi, rule))
        if self.robust == "none":
            return mechanism.server_update(state, replies, roster, lambda phi: join(phi, rule, self.sharpen))
        assert isinstance(state, Uploads)
        beliefs = state.beliefs(replies) if self.adds_up else None

        def consensus(phi: Tensor) -> Tensor:
            logits, said = rule == "mean_logits", phi if beliefs is None else beliefs[state.heard(replies)]
            sites = None if beliefs is None else phi - said
            return join(phi, rule, self.sharpen, joined(said, self.robust, self.trim, sites, logits=logits))

        new = mechanism.server_update(state, replies, roster, consensus)
        assert isinstance(new, Uploads)
        return new if beliefs is None else replace(new, belief=beliefs)

    def _check_parts(self, privacy: PrivacySettings) -> None:
        """Raise a UserError where a part of the alignment set is no good."""
        if not self.points_per_round:
            return
        named = f"methods.{self.name}.points_per_round = {self.points_per_round}"
        if privacy.on:
            raise UserError(
                f"{named}: noise of privacy.mechanism = '{privacy.mechanism}' is planned for the whole alignment set; "
                "set one of both to 0 and none"
            )
        if self.adds_up:
            raise UserError(
                f"{named}: what a head holds that others do not is what it sent beyond the consensus, for which it "
                f"needs that at all points; set it to 0, or methods.{self.name}.head to false"
            )

    @property
    def adds_up(self) -> bool:
        """Whether what clients send is what they believe plus what they hold that others do not."""
        return False

    def without(self, state: ConsensusState, client: int) -> ConsensusState:
        return state.without(client)

    def broadcast(self, state: ConsensusState, client: int) -> Message:
        return state.message_to(client)

    def still_asked(self, state: ConsensusState) -> Sequence[int]:
        return state.still_asked

    def least_replies(self, state: ConsensusState) -> int:
        return state.least_replies

    def expected_reply(self, roster: Roster, client: int, message: Message) -> UploadSpec:
        return mechanism_of(roster.privacy).expected_reply(roster, message, self.rule(roster.privacy))


def said(answer: Answer, rule: Rule) -> Tensor:
    """What a client sends of its prediction under this rule."""
    return answer.gaussian if isinstance(answer, Mixture) else output_of(answer, rule)
