"""The contract of a federated method: two pure halves that never share memory and exchange only Messages.

A method is a frozen dataclass of its hyper-parameters. Its client half works on a client's state, its server half
on the server's; a state is a frozen dataclass of tensors, so it can be saved, loaded and compared bit for bit.
Randomness comes in as a `Stream`. Diagnostics are returned beside the state, never hidden in it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import TypeAdapter
from torch import Tensor

from fedbnn.bayes import Prediction
from fedbnn.message import Message
from fedbnn.models import ModelSettings, build
from fedbnn.network import FlatNetwork
from fedbnn.randomness import Stream
from fedbnn.training import Records, TrainingSettings


@dataclass(frozen=True)
class State:
    """Base of all states: every field is a tensor, or None while it has no value yet."""

    def tensors(self) -> dict[str, Tensor]:
        """The fields that have a value, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


S = TypeVar("S", bound=State)  # the client's state
V = TypeVar("V", bound=State)  # the server's state


@dataclass(frozen=True)
class Client:
    """What a client's half may see: its own records, its own model, and the public alignment set."""

    index: int
    name: str
    train: Records
    alignment: Tensor
    classes: int
    model: ModelSettings
    training: TrainingSettings
    seed: int

    @property
    def network(self) -> FlatNetwork:
        """The client's architecture. Scratch space, shared by all clients of this process with the same model:
        whoever uses it first writes the weights it wants.
        """
        return _scratch(json.dumps(asdict(self.model)), tuple(self.train.x.shape[1:]), self.classes, self.seed)

    def initial_weights(self) -> Tensor:
        """Weights as the model's own initialisation draws them for this client."""
        shape = tuple(self.train.x.shape[1:])
        seed = Stream((self.seed, "model", self.index)).seed
        return FlatNetwork(lambda: build(self.model, shape, self.classes), seed).weights


@lru_cache(maxsize=16)
def _scratch(model: str, shape: tuple[int, ...], classes: int, seed: int) -> FlatNetwork:
    settings = TypeAdapter(ModelSettings).validate_json(model)
    return FlatNetwork(lambda: build(settings, shape, classes), Stream((seed, "scratch")).seed)


@dataclass(frozen=True)
class Roster:
    """What the server knows: how many clients, which classes, the public alignment set, and who runs which model."""

    clients: int
    classes: int
    alignment: Tensor
    models: tuple[ModelSettings, ...]


class Update(NamedTuple, Generic[S]):
    """What a client's turn gives: its new state, what it sends, and diagnostics that stay at home."""

    state: S
    message: Message
    info: Mapping[str, float]


class Method(ABC, Generic[S, V]):
    """A federated method. Subclasses are frozen dataclasses of hyper-parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]
    client_state: ClassVar[type[Any]]
    server_state: ClassVar[type[Any]]

    @abstractmethod
    def client_init(self, client: Client) -> S:
        """The state of a client before anything has happened."""

    @abstractmethod
    def client_update(self, state: S, client: Client, message: Message, round_number: int, rng: Stream) -> Update[S]:
        """One turn. Round 0 is the warm-up: nobody has sent anything yet."""

    @abstractmethod
    def predict(self, state: S, client: Client, x: Tensor, rng: Stream) -> Prediction:
        """The personal model's predictive distribution for records x."""

    @abstractmethod
    def server_init(self, roster: Roster) -> V:
        """The server's state before anything has happened."""

    @abstractmethod
    def agreed(self, roster: Roster, client: int) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of what this client must send; checked at the server's door."""

    @abstractmethod
    def server_update(self, state: V, replies: Mapping[int, Message]) -> V:
        """Take in the replies of the clients that took part."""

    @abstractmethod
    def broadcast(self, state: V, client: int) -> Message:
        """What this client receives at the start of the next round."""
