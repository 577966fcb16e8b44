"""A mechanism: how what leaves a client is protected. Here, what is to be known of one without any federation.

A mechanism is one file under `fedbnn.methods.mechanisms`, which also says what its client sends and what its server
makes of that. Defining it puts it into MECHANISMS, under the name it has in the configuration.
"""

from abc import ABC
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar


@dataclass(frozen=True)
class Sizes:
    """Of a federation, as far as the size of a release depends on them."""

    records: int = 250  # of one client
    classes: int = 10
    dimensions: int = 100  # public features
    alignment: int = 2000
    clients: int = 20


@dataclass(frozen=True)
class Release:
    """What one release of a client is.

    Attributes:
        numbers: how many it consists of.
        sensitivity: the most that one record changes it, in Euclidean norm.
        signal: length of the noiseless release, less what it is without records.
        signal_means: what is measured so, in words.
        at_most: whether the signal is an upper bound.
        joined: whether the releases of all clients are put together before use, so that noise averages out.

    """

    numbers: int
    sensitivity: float
    signal: float
    signal_means: str
    at_most: bool
    joined: bool


class Mechanism(ABC):
    """How what leaves a client is protected."""

    name: ClassVar[str]
    summary: ClassVar[str]
    sent: ClassVar[str]
    """What leaves a client, as a sentence of the report."""
    adds_up: ClassVar[bool] = False
    """Whether the server needs only the sum of what clients send, so that it can be kept from seeing more."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):
            MECHANISMS[cls.name] = cls()

    def releases(self, rounds: int) -> int:
        """Among how many noisy releases the budget is divided, unless the settings say."""
        return 1

    def release(self, sizes: Sizes) -> Release | None:
        """What one release is in a federation of these sizes; None: it has no noise, and nothing is promised."""
        return None


MECHANISMS: dict[str, Mechanism] = {}


def known_mechanisms() -> dict[str, Mechanism]:
    """All of them, by name. Ours are defined in a room above this one: whoever asks first has it loaded."""
    import_module("fedbnn.methods.mechanisms")
    return MECHANISMS
