"""Features that are principal components already, as a body's view gives them: the map that leaves them as they are."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbnn.features.feature_map import FeatureMap


@dataclass(frozen=True)
class PlainMap(FeatureMap):
    """z = x."""

    principal: ClassVar[bool] = True

    width: Tensor  # [1]

    @classmethod
    def fit(cls, alignment: Tensor, dimensions: int, generator: torch.Generator) -> "PlainMap":  # noqa: ARG003
        """All columns, whatever `dimensions` says; the constant gets as much as all of them."""
        return cls(
            alignment.flatten(1).square().sum(1).mean().sqrt().view(1), torch.tensor([float(alignment[0].numel())])
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return (int(self.width),)

    @property
    def dimensions(self) -> int:
        return int(self.width) + 1

    def coordinates(self, x: Tensor) -> Tensor:
        return x.flatten(1)
