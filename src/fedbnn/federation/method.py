"""The contract of a federated method: two pure halves that never share memory and exchange only Messages.

A method is a frozen dataclass of its hyper-parameters. Its client half works on a client's state, its server half
on the server's; a state is a frozen dataclass of tensors, so it can be saved, loaded and compared bit for bit.
Randomness comes in as a `Stream`. Diagnostics are returned beside the state, never hidden in it.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.data.identity import identify, numbering
from fedbnn.federation.message import Message, UploadSpec
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import average
from fedbnn.models.label_prior import smoothed_shares, uniform
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression import OUTPUTS, Answer, Measured, Scale, mixture_over
from fedbnn.models.training import Records, TrainingSettings
from fedbnn.privacy import Account, Budget, Guarantee, PrivacySettings, ReleaseGate


@dataclass(frozen=True)
class State:
    """Base of all states: every field is a tensor, or None while it has no value yet."""

    def tensors(self) -> dict[str, Tensor]:
        """The fields that have a value, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The state that `tensors` was of."""
        try:
            return cls(**tensors)
        except TypeError:
            raise UserError(
                f"a saved state holds {', '.join(sorted(tensors))}, this version's {cls.__name__} "
                f"{', '.join(field.name for field in fields(cls))}: the run was begun by another version; begin it anew"
            ) from None

    def to(self, device: torch.device | str) -> Self:
        """The same on another device; numbers in double precision stay on the CPU, where they are made and used."""
        return replace(self, **{n: v.to(device) for n, v in self.tensors().items() if v.dtype != torch.float64})


S = TypeVar("S", bound=State)  # the client's state
V = TypeVar("V", bound=State)  # the server's state

Variant = Literal["personal", "general", "global", "global_own_prior", "fine_tuned"]
"""Which model is scored: the client's own; the same, asked with every class equally likely; the server's; the same,
asked with the client's own class shares; or the server's after local training at the client."""


@dataclass(frozen=True)
class Promise:
    """A guarantee under which a method works: everything that leaves costs at most the budget."""

    budget: Budget
    unit: Literal["record", "client"]  # what one may add or remove; of clients, the server is trusted


@dataclass(frozen=True)
class Client:
    """What a client's half may see: its own records, its own model, and the public alignment set."""

    index: int
    name: str
    train: Records
    alignment: Tensor = field(repr=False)
    classes: int  # 0: regression, whose targets are real numbers
    model: ModelSettings
    training: TrainingSettings
    rounds: int  # exchanges that are planned: a budget that is spent a piece a round is divided by it
    seed: int
    privacy: PrivacySettings = field(default_factory=PrivacySettings)  # the client's own: no server changes them
    multiplicity: int = 1  # the largest number of clients that hold one and the same record
    ledgers: Path | None = None  # folder of this client's ledgers, one for each set of records
    identity: Tensor | None = field(default=None, repr=False)  # which records: as they were, see `data.identity`
    clients: int = 1  # how many there are in all
    signers: tuple[str, ...] = ()  # public keys of all clients for secure aggregation (Ed25519, hex), if agreed on
    signing_key: Path | None = None  # file with the private half of the own one
    cap: Budget | None = None  # the most that all releases from its records may cost, ever; None: what the run may
    run: str = ""  # what tells this run's charges from those of others
    disjoint: bool = False  # the owner of the ledgers declares that its sets of records are of different people
    scale: Scale | None = None  # of the target in regression: `train` has it standardised

    @property
    def regression(self) -> bool:
        return self.classes == 0

    @property
    def outputs(self) -> int:
        """How many numbers its network gives for a record."""
        return self.classes or OUTPUTS

    @property
    def device(self) -> torch.device:
        """Where its half is computed: where its records are."""
        return self.train.x.device

    def account(self, budget: Budget, joined: Budget | None = None) -> Account:
        """Where all that leaves under a promise is charged: the ledgers of this client's records."""
        if self.ledgers is None:
            raise UserError(
                f"client '{self.name}': what leaves under privacy needs a place for ledgers of what is spent: "
                "make_sites(..., ledgers=folder)"
            )
        if self.identity is None:
            x, labels = self.train.x.cpu().numpy(), [str(label) for label in self.train.y.tolist()]
            identity = identify(x, labels)
        else:
            identity = self.identity.numpy()
        occasion = "" if self.run else numbering(identity, self.train.y.cpu().numpy())
        return Account(self.ledgers, identity, self.name, budget, self.cap, self.run, self.disjoint, occasion, joined)

    @property
    def own_shares(self) -> Tensor:
        """How common each class is among its records, as a label prior."""
        return smoothed_shares(self.train.y, self.classes)

    @property
    def gate(self) -> ReleaseGate:
        """The way out for sums and outputs under `privacy`. Works on the CPU, on whole numbers in double precision."""
        return ReleaseGate(
            self.train.x.cpu(),
            self.train.y.cpu(),
            self.classes,
            self.alignment.cpu(),
            self.privacy,
            self.rounds,
            self.multiplicity,
            self.account(
                self.privacy.cap(self.rounds, self.multiplicity, self.clients),
                self.privacy.joined_budget if self.privacy.secure else None,
            ),
            self.clients,
        )

    @property
    def network(self) -> FlatNetwork:
        """The client's architecture. Scratch space, shared by all clients of this process with the same model:
        whoever uses it first writes the weights it wants.
        """
        return self.network_with(self.outputs)

    def network_with(self, outputs: int) -> FlatNetwork:
        """The client's architecture with another number of outputs, e.g. as an embedding."""
        shape = tuple(self.train.x.shape[1:])
        return _scratch(json.dumps(asdict(self.model)), shape, outputs, self.seed, self.device)

    def initial_weights(self) -> Tensor:
        """Weights as the model's own initialisation draws them for this client."""
        weights = _initial(self.model, tuple(self.train.x.shape[1:]), self.outputs, self.seed, self.index)
        return weights.to(self.device)

    def says(self, weights: Iterator[Tensor], x: Tensor) -> Answer:
        """What its network says of x over these weight vectors, each as likely as the others."""
        return mixture_over(self.network, weights, x) if self.regression else average(self.network, weights, x)

    def taught(self, target: Tensor) -> Records:
        """The alignment set with a target: class probabilities, or in regression means and log variances."""
        of_gaussians = Measured.of_gaussians
        return of_gaussians(self.alignment, target) if self.regression else Records(self.alignment, target)


@lru_cache(maxsize=16)
def _scratch(model: str, shape: tuple[int, ...], outputs: int, seed: int, device: torch.device) -> FlatNetwork:
    settings = TypeAdapter(ModelSettings).validate_json(model)
    return FlatNetwork(lambda: build(settings, shape, outputs), Stream((seed, "scratch")).seed, device)


def _initial(model: ModelSettings, shape: tuple[int, ...], outputs: int, seed: int, index: int) -> Tensor:
    return FlatNetwork(lambda: build(model, shape, outputs), Stream((seed, "model", index)).seed).weights


@dataclass(frozen=True)
class Roster:
    """What the server knows: who takes part with which model, which classes, and the public alignment set."""

    names: tuple[str, ...]
    classes: int  # as in `Client`
    alignment: Tensor = field(repr=False)
    models: tuple[ModelSettings, ...]
    rounds: int  # exchanges that are planned
    seed: int
    privacy: PrivacySettings = field(default_factory=PrivacySettings)  # the mechanism that was agreed on
    signers: tuple[str, ...] = ()  # as in `Client`
    ledgers: Path | None = None  # folder of the server's own ledgers, where it is the server that adds the noise
    multiplicity: int = 1  # as in `Client`, where all have agreed on it
    run: str = ""  # as in `Client`

    def account(self, budget: Budget) -> Account:
        """Where the server charges what it releases about whole clients: these are its records, by their names."""
        if self.ledgers is None:
            raise UserError("noise that the server adds needs a place for its ledger: make_sites(..., ledgers=folder)")
        names = identify(np.zeros((self.clients, 0), np.float32), self.names)
        return Account(self.ledgers, names, "server", budget, run=self.run)

    @property
    def clients(self) -> int:
        return len(self.names)

    @property
    def regression(self) -> bool:
        return self.classes == 0

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record."""
        return self.classes or OUTPUTS

    def network(self, client: int, outputs: int | None = None) -> FlatNetwork:
        """A client's architecture: scratch space, as `Client.network`."""
        shape = tuple(self.alignment.shape[1:])
        model, device = json.dumps(asdict(self.models[client])), self.alignment.device
        return _scratch(model, shape, outputs or self.outputs, self.seed, device)

    def initial_weights(self, client: int, outputs: int | None = None) -> Tensor:
        """Weights as this client's model would start with, were it on its own."""
        shape = tuple(self.alignment.shape[1:])
        return _initial(self.models[client], shape, outputs or self.outputs, self.seed, client)


class Update(NamedTuple, Generic[S]):
    """What a client's turn gives: its new state, what it sends, and diagnostics that stay at home."""

    state: S
    message: Message
    info: Mapping[str, float]


class Method(ABC, Generic[S, V]):
    """A federated method. Subclasses are frozen dataclasses of hyper-parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs_protection: ClassVar[bool] = True  # sends what a mechanism of `privacy` would have to protect, and cannot
    one_architecture: ClassVar[bool] = False  # all clients must run the same, or the server does not start
    regression: ClassVar[bool] = False  # also knows targets that are real numbers
    partly_bayesian: ClassVar[bool] = False  # knows weights that learn without a posterior beside those with one
    client_state: ClassVar[type[Any]]
    server_state: ClassVar[type[Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a method that lacks a declaration where it is written, not where it is first missed.

        A base that other methods share has no name and leaves a half to them.
        """
        super().__init_subclass__(**options)
        if inspect.isabstract(cls) and "name" not in vars(cls):
            return
        for name, kind in (("name", str), ("summary", str), ("client_state", type), ("server_state", type)):
            if not isinstance(getattr(cls, name, None), kind):
                wanted = "a line of text" if kind is str else "the class of its state"
                raise TypeError(f"{cls.__module__}.{cls.__qualname__} needs {name} = ... ({wanted})")
        for name in ("client_state", "server_state"):
            if not issubclass(getattr(cls, name), State):
                raise TypeError(f"{cls.__module__}.{cls.__qualname__}: {name} is not derived from State")

    def check_task(self, privacy: PrivacySettings, *, regression: bool) -> None:
        """Raise a UserError if this method cannot learn such targets under this privacy, whoever has them."""
        if regression and not self.regression:
            raise UserError(f"method '{self.name}' is for classification, but data.task = 'regression'")

    def check_client(self, client: Client) -> None:
        """Raise a UserError if this client cannot take part; asked before any work is done."""
        self.check_task(client.privacy, regression=client.regression)
        if client.privacy.on and self.needs_protection:
            raise UserError(
                f"method '{self.name}' has no private exchange: privacy.mechanism = '{client.privacy.mechanism}' "
                "is for methods that exchange outputs (fedbnn, fedmd)"
            )
        if client.model.body and self.protects(client.privacy) is not None:
            raise UserError(
                f"method '{self.name}' promises privacy, for which features must be worked out one record at a time: "
                f"body '{client.model.body}' of model '{client.model.name}' does not; leave one of both out"
            )
        if client.model.slow and not self.partly_bayesian:
            raise UserError(
                f"method '{self.name}' trains all weights alike: rest_rate = {client.model.rest_rate:g} of model "
                f"'{client.model.name}' is for fedbnn, fedbnn_paper and local_bnn; set it to 0, which freezes them"
            )

    def check_deployed(self) -> None:
        """Raise a UserError if this method is for experiments on one machine only."""

    @abstractmethod
    def client_init(self, client: Client) -> S:
        """The state of a client before anything has happened."""

    @abstractmethod
    def client_update(self, state: S, client: Client, message: Message, round_number: int, rng: Stream) -> Update[S]:
        """One turn. Round 0 is the warm-up: nobody has sent anything yet."""

    @abstractmethod
    def predict(self, state: S, client: Client, x: Tensor, rng: Stream) -> Answer:
        """The predictive distribution of a state's model for records x; in regression, of standardised targets."""

    def scored(self, state: S, client: Client, message: Message, rng: Stream) -> Mapping[Variant, S]:
        """Which models are scored, the headline first, each as a state that `predict` takes.

        `message` is what the server would send this client next. Whoever names "global" is also scored as
        "global_own_prior", last.
        """
        return {"personal": state}

    # In classification a prediction stands under a label prior: how likely each class is before its record is seen.
    # What `predict` gives is put under the prior that is asked for by their ratio (`fedbnn.models.label_prior`).

    def trained_prior(self, variant: Variant, client: Client) -> Tensor:
        """Which label prior this variant's answers stand under as `predict` gives them.

        That of its training records: a client's own, or those of all clients, among which no class is special.
        """
        return uniform(client.classes) if variant in ("general", "global", "global_own_prior") else client.own_shares

    def asked_prior(self, variant: Variant, client: Client) -> Tensor | None:
        """Which label prior this variant is asked for; None: its answers stay as they are."""
        return client.own_shares if variant == "global_own_prior" else None

    def protects(self, privacy: PrivacySettings) -> Promise | None:
        """What is promised under these settings; None: nothing is. Caps, ledgers and what else may leave hang on it."""
        return None

    def privacy_spent(self, client: Client, turns: int) -> Guarantee | None:
        """What is guaranteed after that many turns of this client; None: nothing is."""
        return None

    def replanned(self, before: int, now: int) -> str:
        """Why rounds held while `before` were planned are other ones than with `now`; empty: they are the same.

        Then a finished run can go on to more rounds. A method that looks at `rounds` of a client or roster says so
        here; under a promise of `protects`, whose budget is divided by them, nobody asks.
        """
        return ""

    @abstractmethod
    def server_init(self, roster: Roster) -> V:
        """The server's state before anything has happened."""

    @abstractmethod
    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        """Names, shapes and ranges of what this client must send; checked before the server takes it in."""

    @abstractmethod
    def server_update(self, state: V, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> V:
        """Take in the replies of the clients that took part."""

    def without(self, state: V, client: int) -> V:
        """The server's state where nothing that this client sent is used any more: it is set aside for the run.

        A method whose server remembers what each client sent forgets it here.
        """
        return state

    @abstractmethod
    def broadcast(self, state: V, client: int) -> Message:
        """What this client receives at the start of the next round."""

    # A round may take several exchanges. All of them go through `broadcast`, `client_update` and `server_update`, whose
    # state says how far the round is.

    def exchange_of(self, client: Client, message: Message) -> int:
        """Which exchange of its round a message to this client asks for, counted from 0."""
        return 0

    def expected_reply(self, roster: Roster, client: int, message: Message) -> UploadSpec:
        """Names, shapes and ranges of what this client must answer to this message."""
        return self.expected_upload(roster, client)

    def still_asked(self, state: V) -> Sequence[int]:
        """Clients that are to be asked once more before the round is over; none: it is over."""
        return ()

    def least_replies(self, state: V) -> int:
        """With fewer replies an exchange has to be held again."""
        return 0
