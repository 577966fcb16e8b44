"""What a public feature map is: what a small softmax head sees when it is trained under differential privacy.

A map is fitted on the public alignment set alone, so it costs no privacy and is the same for everybody. It ends in

    phi(x) = (z, k) / ||(z, k)||,      so ||phi(x)|| = 1

with a constant k for the head's bias: the gradient phi (e_y - p)^T of a record's cross-entropy is then never longer
than sqrt(2), and at p = 1 / classes never longer than 1. Noise is the same in every direction of phi, hence few
directions, none of them faint.

Numbers from elsewhere are not trusted with the norm: `unit_rows` sets it on whatever a map produced. Nor does phi of a
record depend on the others that are mapped with it, not in a bit: a map is called for one record at a time
(`base/one_by_one.py` has the proof). Public records, whose features nobody needs to hide, are mapped many at once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedbnn.base.one_by_one import one_by_one

_SHRINK = 1 - 1e-6  # rounding to single precision must not push a norm above one
_ZERO = torch.zeros((), dtype=torch.float64)
_BATCH = 256  # public records mapped at once


def unit_rows(v: Tensor) -> Tensor:
    """Rows of length one, never more in floating point; a row that is zero or not finite becomes zero.

    A record that cannot be represented then contributes nothing: an error would tell that it is there.
    """
    double = v.double()
    norms = torch.linalg.vector_norm(double, dim=1, keepdim=True)
    usable = (norms > 0) & (norms < math.inf)
    return torch.where(usable, double / norms * _SHRINK, _ZERO).float()


@dataclass(frozen=True)
class FeatureMap(ABC):
    """phi: a function of records, given by single-precision tensors that can be stored and sent by name.

    A kind of map is a subclass in a file of its own, which says how it is fitted and what the coordinates z are. Its
    fields are its tensors.
    """

    principal: ClassVar[bool] = False  # whether z are principal components of the alignment set, the widest first

    constant: Tensor  # [1]: the coordinate k

    def __post_init__(self) -> None:
        for name, value in self.tensors().items():
            if value.dtype != torch.float32 or not bool(value.isfinite().all()):
                raise ValueError(f"'{name}' of a feature map must be finite and torch.float32")
        if self.constant.shape != (1,):
            raise ValueError("'constant' of a feature map must be one number")

    @classmethod
    @abstractmethod
    def fit(cls, alignment: Tensor, dimensions: int, generator: torch.Generator) -> Self:
        """The map of these public records; chance comes from the generator alone."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the records it takes; one number where they are flattened first."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """The length of phi, with its constant."""

    @abstractmethod
    def coordinates(self, x: Tensor) -> Tensor:
        """The z of each record [n, dimensions - 1]; under privacy it is asked for one record at a time."""

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The phi of each record [n, dimensions], with ||phi|| = 1; zero for a record that has no finite features.

        Each record's is a function of that record alone.
        """
        self._check(x)
        rows = one_by_one(self._phi, x)
        return torch.cat(rows) if rows else torch.empty(0, self.dimensions)

    @torch.no_grad()
    def batched(self, x: Tensor) -> Tensor:
        """The phi of public records: faster, and in its last bits also a function of how many there are."""
        self._check(x)
        rows = [self._phi(part) for part in x.split(_BATCH)]
        return torch.cat(rows) if rows else torch.empty(0, self.dimensions)

    def _check(self, x: Tensor) -> None:
        given = tuple(x.shape[1:])
        if self.shape not in (given, (math.prod(given),)):
            raise ValueError(f"records have shape {given}: this feature map takes {self.shape}")

    def _phi(self, x: Tensor) -> Tensor:
        z = self.coordinates(x)
        return unit_rows(torch.cat([z, self.constant.expand(len(z), 1)], 1))

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The map that `tensors` gave; raises a ValueError if these are not a map's."""
        names = {field.name for field in fields(cls)}
        if tensors.keys() != names:
            raise ValueError(f"a feature map consists of {sorted(names)}, not of {sorted(tensors)}")
        return cls(**tensors)
