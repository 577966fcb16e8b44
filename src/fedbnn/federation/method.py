"""The contract of a federated method: two pure halves that never share memory and exchange only Messages.

A method is a frozen dataclass of its hyper-parameters. Its client half works on a client's state, its server half
on the server's; a state is a frozen dataclass of tensors, so it can be saved, loaded and compared bit for bit.
Randomness comes in as a `Stream`. Diagnostics are returned beside the state, never hidden in it.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message, UploadSpec
from fedbnn.federation.parties import Client, Roster
from fedbnn.models.label_prior import uniform
from fedbnn.models.regression import Answer
from fedbnn.privacy import Budget, Guarantee, PrivacySettings


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
