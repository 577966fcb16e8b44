"""What crosses the wire between client and server: named arrays, and nothing else.

On the wire and on disk a message is a safetensors block: a JSON header of names, types and shapes, then the raw
numbers. Reading one can run no code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


class BadMessage(ValueError):
    """A message that is not what was agreed; the text says what is wrong with it."""


@dataclass(frozen=True)
class Message:
    """Named arrays."""

    arrays: Mapping[str, Tensor] = field(default_factory=dict)

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
        except (SafetensorError, KeyError) as error:
            raise BadMessage(f"not a message: {error}") from error


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
        if not bool(torch.isfinite(array).all()):
            raise BadMessage(f"'{name}' holds values that are not finite")
        if isinstance(form, Integers) and bool(((array > form.most) | (array < -form.most)).any()):
            raise BadMessage(f"'{name}' holds values beyond {form.most}")
