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

from fedbnn.base.wording import one_line

MOST_SENT = 10**6  # the largest number that a server may send to a site, and a site to a server, either way
MOST_RECORDS = 10**9  # that a site may say it has
MOST_WHOLE = 2**53  # of whole numbers
ABSURD = 10_000.0  # no honest weight or logit is as large: a softmax is sure to the last bit from about a hundred on
ROUNDING = 1e-3  # by which class probabilities may miss a sum of one
_LONGEST = 300  # signs of what another party sent that are told
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
            raise BadMessage(f"not a message: {reason:.{_LONGEST}}") from error


@dataclass(frozen=True)
class Integers:
    """Expected: an array of whole numbers (int64) of this shape, none of them larger than `most` either way."""

    shape: tuple[int, ...]
    most: int


@dataclass(frozen=True)
class Numbers:
    """Expected: float32 of this shape, each from `low` to `high`; weights and logits unless they are given."""

    shape: tuple[int, ...]
    low: float = -ABSURD
    high: float = ABSURD


@dataclass(frozen=True)
class Distributions:
    """Expected: float32 of this shape, of which each row is a point on the simplex, within rounding."""

    shape: tuple[int, ...]


Form = tuple[int, ...] | Integers | Numbers | Distributions
"""What an array must be; a bare shape is float32 within what a site takes back, MOST_SENT either way."""

UploadSpec = Mapping[str, Form]
"""What a client must send: names of arrays, and the form of each."""


def records_form() -> Numbers:
    """Of the number of records that a client says it has."""
    return Numbers((1,), 0.0, MOST_RECORDS)


def shape_of(form: Form) -> tuple[int, ...]:
    return form if isinstance(form, tuple) else form.shape


def upload_bytes(expected: UploadSpec) -> int:
    """The size of the numbers of a message that is as agreed."""
    return sum((8 if isinstance(form, Integers) else 4) * prod(shape_of(form)) for form in expected.values())


def check_names(message: Message) -> None:
    """Raise BadMessage where an array has a name that cannot be printed, or not be read back from a file."""
    for name in message.arrays:
        if not PLAIN_NAME.fullmatch(name):
            raise BadMessage(
                f"an array is called {name!r:.100}; names are letters, digits, '_', '.' and '-', at most 60, and begin "
                "with one of the first two"
            )


def check_sent(message: Message) -> None:
    """Raise BadMessage for what no site takes from a server: the server asks this before it sends, a site after."""
    check_names(message)
    for name, array in message.arrays.items():
        if array.dtype not in (torch.float32, torch.int64):
            raise BadMessage(f"'{name}' is {array.dtype}; only float32 and int64 are taken")
        bound = MOST_SENT if array.is_floating_point() else MOST_WHOLE
        _check_range(name, array, -bound, bound)


def check(message: Message, expected: UploadSpec) -> None:
    """Raise BadMessage unless it holds exactly the expected names, each of its type and shape, and in its range."""
    if message.arrays.keys() != expected.keys():
        held = one_line(str(sorted(message.arrays)), _LONGEST)  # whatever was sent, and as much of it
        raise BadMessage(f"it holds {held}, agreed were {sorted(expected)}")
    for name, form in expected.items():
        array = message.arrays[name]
        kind = torch.int64 if isinstance(form, Integers) else torch.float32
        if array.dtype != kind:
            raise BadMessage(f"'{name}' is {array.dtype}, agreed was {kind}")
        if tuple(array.shape) != shape_of(form):
            raise BadMessage(f"'{name}' has shape {tuple(array.shape)}, agreed was {shape_of(form)}")
        match form:
            case Numbers(low=low, high=high):
                _check_range(name, array, low, high)
            case Integers(most=most):
                _check_range(name, array, -most, most)
            case Distributions():
                _check_range(name, array, -ROUNDING, 1 + ROUNDING)
                if bool(((array.double().sum(-1) - 1).abs() > ROUNDING).any()):
                    raise BadMessage(f"'{name}' holds rows of class probabilities that do not add up to 1")
            case _:
                _check_range(name, array, -MOST_SENT, MOST_SENT)


def _check_range(name: str, array: Tensor, low: float, high: float) -> None:
    if array.numel() == 0:
        return
    least, largest = array.aminmax()  # what is no number is both of them
    if not bool(torch.isfinite(least) & torch.isfinite(largest)):
        raise BadMessage(f"'{name}' holds values that are not finite")
    if bool((largest > high) | (least < low)):
        bounds = f"beyond {_shown(high)}" if low == -high else f"that are not from {_shown(low)} to {_shown(high)}"
        raise BadMessage(f"'{name}' holds values {bounds}")


def _shown(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
