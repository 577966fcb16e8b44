"""What an engine is: the place where client halves run. The method and the round loop cannot tell which one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedbnn.data.view import InputView
from fedbnn.federation.evaluation import Scored
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Client
from fedbnn.models.label_prior import Known
from fedbnn.models.regression import Answer
from fedbnn.models.training import Records


@dataclass(frozen=True)
class Site:
    """A client together with the records it is scored on.

    Attributes:
        own: marks the evaluation records of the client's own classes; where it marks none, the client is unscored.
        weights: how many weights its model has.
        operations: floating-point operations of its model for one record; 0 where nobody has to share out the work.
        foreign: inputs of no client, on which its uncertainty is tried after the last round.
        calibration: the client's own records that no training sees. They stay where predictions are asked for.
        view: from inputs as loaded to what models see, where it is known.
        split: what the records it is scored on were set aside for; test unless it is known that they may choose.

    """

    client: Client
    evaluation: Records
    own: Tensor = field(repr=False)
    weights: int
    operations: int
    foreign: Tensor | None = field(default=None, repr=False)
    calibration: Records | None = None
    view: InputView | None = field(default=None, repr=False)
    split: str = "test"

    @property
    def scored(self) -> bool:
        """Whether there are records that say how good the client's model is at what it is for."""
        return bool(self.own.any())


def by_index(sites: Iterable[Site]) -> dict[int, Site]:
    """The sites by the number of their client."""
    return {site.client.index: site for site in sites}


@dataclass(frozen=True)
class Reply:
    """A client's answer to one round: what it sends, diagnostics, and how long it took."""

    message: Message
    info: Mapping[str, float]
    seconds: float


class ClientFailure(RuntimeError):
    """A client's half raised an error; the text names the client and holds its traceback."""


class Engine(Protocol):
    """Runs client halves. Results come as they are ready; whoever needs an order sorts them."""

    def start(self, method: Method[Any, Any], sites: Sequence[Site], seed: int) -> None:
        """Take in the clients and give each its initial state."""

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        """One turn of each client named in `messages`."""

    def lose(self, round_number: int, messages: Mapping[int, Message]) -> None:
        """One turn of each client named in `messages`, whose reply and new state are lost: it dies as it ends."""

    def evaluate(
        self, round_number: int, messages: Mapping[int, Message], foreign: bool = False
    ) -> Iterator[tuple[int, dict[str, Scored]]]:
        """Score the models of each client named in `messages`; these hold what the server would send next.

        With `foreign`, also ask them about the sites' foreign inputs, where there are any.
        """

    def predict(
        self,
        client: int,
        x: Tensor,
        round_number: int,
        message: Message,
        variant: str | None = None,
        prior: Known | Sequence[float] | None = None,
    ) -> Answer:
        """The predictive distribution of one client's model: of this variant, or the one scored first.

        `prior` is the label prior that is asked for, as `label_prior.checked` gives it; without one, the variant's own.
        """

    def save(self, folder: Path) -> None:
        """Write every client's state as a safetensors file in the folder."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""

    def close(self) -> None:
        """Let go of processes and memory."""
