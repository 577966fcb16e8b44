"""Reads pickles that hold lists, texts, numbers and uint8 arrays, and runs nothing that they name.

A pickle is a program: the standard loader calls whatever function it names. Here every name is looked up in a closed
list, and what stands there are classes of this file that only write down what they are given: not even NumPy's own
reconstruction is run on a stranger's arguments.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from fedbnn.data.stored import Array

_MOST_KEPT = (
    2**20
)  # things that a pickle may want to come back to; the loader makes room for the largest number it names


class BadPickle(ValueError):
    """The pickle names something that is not on the list, or is damaged."""


class _Dtype:
    """What stands for numpy.dtype: only its code is kept."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Byte order and fields say nothing about single bytes."""


class _Array:
    """What stands for an array: the state that NumPy would be given (version, shape, dtype, Fortran order, bytes)."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> Array:
        match self.state:
            case (int(), tuple() as shape, _Dtype(code="u1" | "|u1"), False | 0, bytes() as content) if all(
                isinstance(size, int) and size >= 0 for size in shape
            ) and len(content) == math.prod(shape):
                return np.frombuffer(content, np.uint8).reshape(shape)
        raise BadPickle("an array in it is not plain uint8")


class _NdarrayName:
    """What stands for the class numpy.ndarray where a pickle names it as an argument."""


def _encode(text: str, encoding: str) -> bytes:
    """_codecs.encode, which is how Python 3 writes bytes into old pickles, for the one encoding it uses there."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise BadPickle("_codecs.encode with other arguments than a text and 'latin1'")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _NdarrayName,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise BadPickle(f"it names {module}.{name}, which is never run") from None

    def persistent_load(self, pid: Any) -> Any:
        raise BadPickle("it refers to objects outside itself")


def load(content: bytes) -> dict[Any, Any]:
    """The dictionary that the pickle holds; its keys and arrays are restored, other texts of Python 2 become bytes."""
    try:
        for operation, number, _ in pickletools.genops(content):
            if operation.name.endswith("PUT") and isinstance(number, int) and number > _MOST_KEPT:
                raise BadPickle(f"it keeps something under the number {number}")
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except BadPickle:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise BadPickle(f"it is damaged: {type(error).__name__}: {error}") from None
    if not isinstance(loaded, dict):
        raise BadPickle("it does not hold a dictionary")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in loaded.items()}
    return {key: value.array() if isinstance(value, _Array) else value for key, value in named.items()}
