"""Features of tables: random Fourier features (Rahimi and Recht 2007).

Columns standardised, then cos(w x), sin(w x), w ~ N(0, I / l^2), of the Gaussian kernel exp(-|x - x'|^2 / (2 l^2))
whose l is the median distance in the alignment set.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.features.feature_map import FeatureMap

_CONSTANT = 1e-5  # a column whose spread is a smaller part of its size than this is constant
_MOST_PAIRED = 1000  # records of the alignment set, to find the median distance


@dataclass(frozen=True)
class FourierMap(FeatureMap):
    """z = (cos a, sin a), a = (x - centre) basis."""

    centre: Tensor  # [columns]
    basis: Tensor  # [columns, b]: frequencies, with all factors

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.basis.dim() != 2 or self.centre.shape != (len(self.basis),):
            raise ValueError("'basis' and 'centre' of a feature map must have the same rows")

    @classmethod
    def fit(cls, alignment: Tensor, dimensions: int, generator: torch.Generator) -> "FourierMap":
        """Features come in pairs, so an even number of dimensions is lowered by one."""
        table, pairs = alignment.flatten(1).float(), (dimensions - 1) // 2
        centre = table.double().mean(0)
        spread = (table - centre).square().mean(0).sqrt()
        varies = spread > _CONSTANT * centre.abs()
        factor = torch.where(varies, 1 / torch.where(varies, spread, 1.0), 0.0)
        standard = (table - centre) * factor
        chosen = standard[torch.randperm(len(standard), generator=generator)[:_MOST_PAIRED]]
        distances = torch.nn.functional.pdist(chosen)
        apart = distances[distances > 0]
        length = float(apart.median()) if len(apart) else 1.0
        normal = torch.randn(table.shape[1], pairs, generator=generator, dtype=torch.float64)
        basis = factor.unsqueeze(1) * normal / length
        # cos^2 + sin^2 = 1 for each pair; the constant gets as much as all of them.
        return cls(torch.tensor([math.sqrt(pairs)]), centre.float(), basis.float())

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.centre),)

    @property
    def dimensions(self) -> int:
        return 2 * self.basis.shape[1] + 1

    def coordinates(self, x: Tensor) -> Tensor:
        angles = (x.flatten(1).float() - self.centre) @ self.basis
        return torch.cat([angles.cos(), angles.sin()], 1)
