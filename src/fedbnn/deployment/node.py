"""A site's half of a federation: it answers what a server asks, under the terms that were agreed on, and no more.

All that must outlive the process is on disk before an answer is given, and the disk alone is believed: a node may be
killed at any moment, and another process may have served the same site meanwhile.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedbnn.base.devices import CPU, find_device
from fedbnn.base.errors import UserError
from fedbnn.base.version import __version__
from fedbnn.deployment.agreement import Refused, check_terms
from fedbnn.deployment.site import load_site
from fedbnn.deployment.site_file import SiteSettings, read_site
from fedbnn.deployment.state import SiteState, Turn, model_facts, remember_site, request_digest
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.federation.engines import Site, by_index
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.message import BadMessage, Message, check, check_sent
from fedbnn.federation.parties import Roster
from fedbnn.models.label_prior import Prior, checked
from fedbnn.models.regression import Answer as Said

LARGEST = 2**30  # bytes that a message to a site may have

log = logging.getLogger(__name__)


Kind = Literal["hello", "update", "evaluate"]


@dataclass(frozen=True)
class Request:
    """What a server asks. Attributes:

    terms: the digest of the terms it works under; in a hello, the terms themselves as JSON.
    foreign: in an evaluation, also ask the models about the site's foreign inputs.

    """

    kind: Kind
    round: int
    terms: str
    message: Message = field(default_factory=Message)
    foreign: bool = False


@dataclass(frozen=True)
class Answer:
    """What leaves the site: arrays, and facts that JSON can hold."""

    message: Message = field(default_factory=Message)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Node:
    """One site in one run."""

    def __init__(
        self,
        terms: Terms,
        site: Site,
        state_folder: Path,
        share_metrics: bool,
        device: torch.device = CPU,
        settings: SiteSettings | None = None,
        key: str = "",  # of the run in the state folder, where it is not that of the terms as this version reads them
    ) -> None:
        self.terms = terms
        self.site = site
        self.share_metrics = share_metrics
        # An aggregation's phase is answered once, and its secrets are forgotten with the last answer.
        self.state = SiteState(state_folder, key or terms.key, one_turn=terms.privacy.secure)
        self._device = device
        self._settings = settings
        self._host: ClientHost | None = None
        self._holds = b""  # the identity of the turn whose state the host holds; empty: the initial state

    @classmethod
    def from_file(cls, site_toml: Path) -> "Node":
        """The node of a site.toml; a UserError where its terms are beyond what it allows, or its records do not fit."""
        settings = read_site(site_toml)
        terms = read_terms(settings.terms, settings.methods)
        check_terms(terms, terms, settings)
        device = find_device(settings.device, "device")
        site = load_site(settings, terms)
        terms.chosen().check_client(site.client)
        remember_site(settings.state, site_toml)
        return cls(terms, site, settings.state, settings.shares(terms), device, settings)

    def answer(self, request: Request) -> Answer:
        """The answer, or a UserError that says why there is none."""
        if request.kind == "hello":
            check_terms(Terms.from_json(request.terms, "the server's terms"), self.terms, self._settings)
            return Answer(facts=self._introduction())
        self._check(request)
        self.state.begin(self.terms, self.site.client)
        with self.state.locked():
            turn = self.state.turn()
            for problem in turn.problems if turn else ():
                if self.terms.privacy.secure:
                    raise UserError(f"{problem}; an older one would answer a phase of the aggregation a second time")
                log.warning("%s: %s", self.state.path, problem)
            if turn and request.round < turn.round_number:
                raise Refused(
                    f"refused: round {request.round} is past, site '{self.terms.sites[self._index]}' has done round "
                    f"{turn.round_number}"
                )
            if request.kind == "update":
                return self._update(request, turn)
            return self._evaluate(request, turn) if self.share_metrics else self._evaluate_silently(request, turn)

    def predict(self, x: Tensor, variant: str | None = None, prior: Prior | None = None) -> Said:
        """Of the site's newest model for scaled inputs: what `Federation.predict` gives after the same rounds."""
        if prior is not None and self.terms.regression:
            raise UserError("prior: it is for classes, and in regression there are none")
        asked = None if prior is None else checked(prior, self.site.client.classes)
        self.state.check_client(self.site.client)
        turn, received = self.state.turn(), self.state.received()
        if turn is None:
            raise UserError(f"{self.state.path}: nothing has been learned yet; wait for the first round")
        newest = (turn.round_number, turn.message)
        if received is not None and received[0] >= turn.round_number:
            newest = received
        return self._host_after(turn).predict(self._index, x, *newest, variant, asked)

    @property
    def _index(self) -> int:
        return self.site.client.index

    def _introduction(self) -> dict[str, Any]:
        """Who this is. Nothing of the records: not how many, not of which classes."""
        client = self.site.client
        return {
            "name": client.name,
            "model": model_facts(client.model),
            "version": __version__,
            "terms": self.terms.digest,
        }

    def _check(self, request: Request) -> None:
        if request.kind not in ("update", "evaluate"):
            raise Refused(f"refused: a request is hello, update or evaluate, not {request.kind!r}")
        if request.terms != self.terms.digest:
            raise Refused(
                f"refused: the server works under other terms (sha256 {request.terms[:12]}), agreed were "
                f"{self.terms.digest[:12]}; a hello with them would say what differs"
            )
        if type(request.round) is not int or not 0 <= request.round <= self.terms.rounds:
            raise Refused(f"refused: round {request.round} was asked for, agreed were 0 to {self.terms.rounds}")
        if request.message.nbytes > LARGEST:
            raise Refused(f"refused: a message of {request.message.nbytes} bytes; at most {LARGEST} are taken")
        try:
            check_sent(request.message)
        except BadMessage as error:
            raise Refused(f"refused: {error}") from error

    def _update(self, request: Request, turn: Turn | None) -> Answer:
        exchange = self.terms.chosen().exchange_of(self.site.client, request.message)
        if turn and request.round == turn.round_number and exchange < turn.exchange:
            raise Refused(f"refused: exchange {exchange} of round {request.round} is past")
        if turn and (request.round, exchange) == (turn.round_number, turn.exchange):
            if request_digest(request.round, request.message) != turn.request:
                raise Refused(f"refused: round {request.round} was asked for before, with another message")
            return self._turn_answer(turn.reply, turn.info, turn.seconds)
        host = self._host_after(turn)
        self._holds = b"unsaved"
        reply = host.update(self._index, request.round, request.message)
        self._check_reply(request.message, reply.message)
        info = {name: float(value) for name, value in reply.info.items()}
        self.state.save_turn(request.round, request.message, reply.message, info, reply.seconds, host.save, exchange)
        saved = self.state.turn()
        assert saved is not None
        self._holds = saved.identity
        if exchange == 0:  # in which the site learned
            self.state.record(request.round, "update", {"seconds": reply.seconds, "info": info})
        return self._turn_answer(reply.message, info, reply.seconds)

    def _check_reply(self, asked: Message, reply: Message) -> None:
        """Under a promise nothing leaves but the arrays that were agreed on, whatever the method made."""
        terms, client, method = self.terms, self.site.client, self.terms.chosen()
        if method.protects(terms.privacy) is None:
            return
        roster = Roster(
            names=terms.sites,
            classes=client.classes,
            alignment=client.alignment,
            models=(client.model,) * len(terms.sites),
            rounds=terms.rounds,
            seed=terms.seed,
            privacy=terms.privacy,
            signers=terms.signers,
            multiplicity=terms.multiplicity,
        )
        try:
            check(reply, method.expected_reply(roster, client.index, asked))
        except BadMessage as error:
            raise UserError(f"method '{terms.method}' would send what was not agreed on: {error}") from error

    def _turn_answer(self, reply: Message, info: Mapping[str, float], seconds: float) -> Answer:
        return Answer(reply, {"info": dict(info), "seconds": seconds} if self.share_metrics else {})

    def _evaluate(self, request: Request, turn: Turn | None) -> Answer:
        # Kept only once it was of use: with another, predictions would fail for as long as none follows.
        host = self._host_after(turn)
        if not self.site.scored:
            host.try_out(self._index, request.round, request.message)
            self.state.keep_received(request.round, request.message)
            return Answer()
        evaluations = host.evaluate(self._index, request.round, request.message, request.foreign)
        self.state.keep_received(request.round, request.message)
        scores = {variant: evaluation.scores for variant, evaluation in evaluations.items()}
        self.state.record(request.round, "evaluate", {"scores": scores})
        shared = {variant: evaluation.to_dict() for variant, evaluation in evaluations.items()}
        return Answer(facts={"evaluation": shared} if self.share_metrics else {})

    def _evaluate_silently(self, request: Request, turn: Turn | None) -> Answer:
        """The same answer whatever happens: that one record makes a model fail would tell of that record."""
        try:
            self._evaluate(request, turn)
        except Exception:
            log.exception("%s: the evaluation after round %d failed", self.state.path, request.round)
        return Answer()

    def _host_after(self, turn: Turn | None) -> ClientHost:
        """The client in the state after this turn: the one at hand if it is in it, else from disk."""
        wanted = turn.identity if turn else b""
        if self._host is None or (self._holds != wanted and turn is None):
            self._host = ClientHost(self.terms.chosen(), by_index([self.site]), self.terms.seed, self._device)
            self._holds = b""
        if turn and self._holds != wanted:
            self._host.load(turn.folder)
            self._holds = wanted
        return self._host
