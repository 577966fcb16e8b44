"""Predictions counted in bins: sums, so that the counts of clients can be added, and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from fedbnn.federation.metrics.predictions import Floats


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
        try:
            arrays: dict[str, Any] = {
                field.name: np.asarray(values[field.name], dtype=np.int64 if field.name in cls.WHOLE else np.float64)
                for field in fields(cls)
            }
            return cls(**arrays)
        except KeyError as missing:
            raise ValueError(f"{cls.WHAT} without {missing}") from None
