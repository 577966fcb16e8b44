"""What crosses the wire between client and server: named arrays, and nothing else.

On the wire and on disk a message is a safetensors block: a JSON header of names, types and shapes, then the raw
numbers. Reading one can run no code.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

MOST_SENT = 10**6  # the largest number that a server may send to a site, either way
MOST_UPLOADED = 10**9  # and a site to a server: a number of records, too
MOST_WHOLE = 2**53  # of whole numbers
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")  # of arrays and numbers that come from another party


class BadMessage(ValueError):
    """A message that is not what was agreed; the text says what is wrong with it."""


@dataclass(frozen=True)
class Message:
    """Named arrays."""

    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Message: {', '.join(f'{name} {tuple(array.shape)}' for name, array in self.arrays.items())}>"

    def get(self, name: str) -> Tensor | None:
        return self.arrays.get(name)

    def to(self, device: torch.device | str) -> "Message":
        return Message({name: array.to(device) for name, array in self.arrays.items()})

    @property
    def nbytes(self) -> int:
        """The size of the numbers themselves, without the header."""
        return sum(array.nbytes for array in self.arrays.values())

    def to_bytes(self) -> bytes:
        """The same bytes for equal arrays, in whatever order they were put in."""
        return save({name: array.contiguous() for name, array in sorted(self.arrays.items())})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Message":
        try:
            return cls(load(data))
        except Exception as error:  # of the reader, or of torch for a shape that nothing can have
            reason = str(error) if isinstance(error, SafetensorError) else type(error).__name__
            raise BadMessage(f"not a message: {reason:.300}") from error


@dataclass(frozen=True)
class Integers:
    """Expected: an array of whole numbers (int64) of this shape, none of them larger than `most` either way."""

    shape: tuple[int, ...]
    most: int


UploadSpec = Mapping[str, tuple[int, ...] | Integers]
"""What a client must send: names of arrays, and the shape of each if it is of float32."""


def upload_bytes(expected: UploadSpec) -> int:
    """The size of the numbers of a message that is as agreed."""
    return sum(8 * prod(form.shape) if isinstance(form, Integers) else 4 * prod(form) for form in expected.values())


def check_names(message: Message) -> None:
    """Raise BadMessage where an array has a name that cannot be printed, or not be read back from a file."""
    for name in message.arrays:
        if not PLAIN_NAME.fullmatch(name):
            raise BadMessage(
                f"an array is called {name!r:.100}; names are letters, digits, '_', '.' and '-', at most 60, and begin "
                "with one of the first two"
            )


def check_bounds(message: Message, most: int, whole: int) -> None:
    """Raise BadMessage where a number is not finite, or larger than these either way."""
    for name, array in message.arrays.items():
        if not bool(torch.isfinite(array).all()):
            raise BadMessage(f"'{name}' holds values that are not finite")
        bound = most if array.is_floating_point() else whole
        # Both ways: the least whole number has no absolute value.
        if bool(((array > bound) | (array < -bound)).any()):
            raise BadMessage(f"'{name}' holds values beyond {bound}")


def check(message: Message, expected: UploadSpec) -> None:
    """Raise BadMessage unless it holds exactly the expected names, each of its type and shape, and finite."""
    if message.arrays.keys() != expected.keys():
        raise BadMessage(f"it holds {sorted(message.arrays)}, agreed were {sorted(expected)}")
    for name, form in expected.items():
        array = message.arrays[name]
        shape, kind = (form.shape, torch.int64) if isinstance(form, Integers) else (form, torch.float32)
        if array.dtype != kind:
            raise BadMessage(f"'{name}' is {array.dtype}, agreed was {kind}")
        if tuple(array.shape) != shape:
            raise BadMessage(f"'{name}' has shape {tuple(array.shape)}, agreed was {shape}")
        check_bounds(Message({name: array}), MOST_UPLOADED, form.most if isinstance(form, Integers) else MOST_WHOLE)
