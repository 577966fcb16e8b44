"""Predictions counted in bins: sums, so that the counts of clients can be added, and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedbnn.federation.metrics.predictions import Floats

MOST_BINS = 1000


@dataclass(frozen=True, eq=False)
class Counts:
    """Arrays of one value for each pair of neighbouring edges; those in WHOLE are of integers."""

    WHAT: ClassVar[str]
    WHOLE: ClassVar[tuple[str, ...]]

    edges: Floats

    def __post_init__(self) -> None:
        sizes = {len(array) for name, array in vars(self).items() if name != "edges"}
        if sizes != {len(self.edges) - 1} or sizes == {0}:
            raise ValueError(f"{self.WHAT} need one entry of each kind for each pair of edges")

    def __add__(self, other: Self) -> Self:
        """Both sets of predictions pooled. The edges must be the same."""
        if not np.array_equal(self.edges, other.edges):
            raise ValueError(f"{self.WHAT} with different edges cannot be added")
        sums = {name: array + vars(other)[name] for name, array in vars(self).items() if name != "edges"}
        return type(self)(self.edges, **sums)

    def to_dict(self) -> dict[str, list[float] | list[int]]:
        return {name: array.tolist() for name, array in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` gave; ValueError for anything else."""
        if not isinstance(values, Mapping):
            raise ValueError("must be an object")
        names = [field.name for field in fields(cls)]
        if missing := [name for name in names if name not in values]:
            raise ValueError(f"{cls.WHAT} without {missing[0]!r}")
        return cls(**{name: _array(f"{name} of {cls.WHAT}", values[name], name in cls.WHOLE) for name in names})


def _array(what: str, values: object, whole: bool) -> NDArray[Any]:
    kinds = (int,) if whole else (int, float)
    if not isinstance(values, list) or len(values) > MOST_BINS + 1 or any(type(one) not in kinds for one in values):
        raise ValueError(f"{what} must be a list of {'whole ' if whole else ''}numbers")
    try:
        return np.asarray(values, dtype=np.int64 if whole else np.float64)
    except OverflowError:
        raise ValueError(f"{what} holds a number that is too large") from None
