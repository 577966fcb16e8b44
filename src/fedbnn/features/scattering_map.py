"""Features of images: principal components of a scattering transform, half whitened.

A scattering transform s, asinh(s / u) with u a tenth of its mean size (a logarithm that zero and negative numbers
survive), each feature divided by its spread (plus a tenth of the average), the principal components of the alignment
set, each divided by the square root of its standard deviation. That is half way between raw components (the first few
are nearly all of the norm) and white ones (the last are mostly noise).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbnn.features import scattering as wavelets
from fedbnn.features.feature_map import FeatureMap

_UNIT = 0.1  # of the mean size of scattering features: where asinh bends
_FLOOR = 0.1  # of the average spread, added to the spread of every scattering feature
_RANK = 1e-6  # principal components with a smaller part of the first one's variance than this are rounding
_TINY = torch.finfo(torch.float32).tiny
_ORIENTATIONS = 8
_LIMITS = (5, 16)  # scales and orientations that a map from elsewhere may ask for


@dataclass(frozen=True)
class ScatteringMap(FeatureMap):
    """z = (asinh(s / u) - centre) basis."""

    principal: ClassVar[bool] = True

    layout: Tensor  # channels, height, width, scales, orientations
    unit: Tensor  # [1]: u
    centre: Tensor  # [f], of asinh(s / u)
    basis: Tensor  # [f, b]: directions, with all factors

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout.shape != (5,) or not bool(((self.layout >= 1) & (self.layout % 1 == 0)).all()):
            raise ValueError(f"'layout' of a feature map is {self.layout.tolist()}: must be 5 whole numbers")
        if any(n > most for n, most in zip(self._transform, _LIMITS, strict=True)):
            raise ValueError(f"'layout' of a feature map asks for {self._transform}: must be at most {_LIMITS}")
        rows = wavelets.features(self.shape, *self._transform)
        if self.basis.dim() != 2 or len(self.basis) != rows or self.centre.shape != (rows,):
            raise ValueError(f"'basis' and 'centre' of a feature map must have {rows} rows")
        if self.unit.shape != (1,):
            raise ValueError("'unit' of a feature map must be one number")

    @classmethod
    def fit(
        cls,
        alignment: Tensor,
        dimensions: int,
        generator: torch.Generator,  # noqa: ARG003
        mirrored: bool = False,
    ) -> "ScatteringMap":
        """Without chance. Where the images span fewer directions than asked for, the rest of phi is zero.

        `mirrored`: the coordinates are those of the mean over an image and its mirror image, which costs nothing, as a
        mirror image has the same scattering features in another order.
        """
        if alignment.dim() != 4:
            raise ValueError(f"scattering needs images, not records of shape {tuple(alignment.shape[1:])}")
        scales = wavelets.default_scales(*alignment.shape[2:])
        scattered = wavelets.scattering(alignment, scales, _ORIENTATIONS)
        if not bool(scattered.isfinite().all()):
            raise ValueError("the alignment set's numbers are too large")
        unit = (_UNIT * scattered.double().abs().mean()).clamp_min(_TINY).float().view(1)
        scattered.div_(unit).asinh_()
        channels, height, width = alignment.shape[1:]
        order = wavelets.mirrored((channels, height, width), scales, _ORIENTATIONS) if mirrored else None
        if order is not None:
            scattered = (scattered + scattered[:, order]) / 2
        centre = scattered.double().mean(0).float()
        scattered -= centre
        spread = scattered.double().square().mean(0).sqrt()
        # Without the average, features of corners where nearly every image is blank would be blown up.
        factor = (1 / (spread + _FLOOR * spread.mean()).clamp_min(_TINY)).float()
        directions, sds = _principal(scattered.mul_(factor), dimensions - 1)
        basis = torch.zeros(len(centre), dimensions - 1)
        basis[:, : len(sds)] = factor.unsqueeze(1) * directions / sds.sqrt()
        if order is not None:
            basis = (basis + basis[order]) / 2
        # The half-whitened components' mean square is the sum of sds^2 / sds; the constant gets as much as all of them.
        size = float(sds.sum().sqrt()) if len(sds) else 1.0
        layout = torch.tensor([*alignment.shape[1:], scales, _ORIENTATIONS], dtype=torch.float32)
        return cls(torch.tensor([size]), layout, unit, centre, basis)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = (int(size) for size in self.layout[:3])
        return channels, height, width

    @property
    def dimensions(self) -> int:
        return self.basis.shape[1] + 1

    def coordinates(self, x: Tensor) -> Tensor:
        scattered = wavelets.scattering(x, *self._transform)
        return (scattered.div_(self.unit).asinh_() - self.centre) @ self.basis

    @property
    def _transform(self) -> tuple[int, int]:
        """Scales and orientations."""
        return int(self.layout[3]), int(self.layout[4])


def _principal(centred: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Principal directions [f, k] of centred rows and the standard deviations along them, k <= most.

    From the smaller one of the two products of the matrix with itself. The sign of a direction, which is arbitrary, is
    such that its largest entry is positive.
    """
    count, width = centred.shape
    by_rows = count < width
    product = (centred @ centred.T if by_rows else centred.T @ centred).double() / count
    variances, vectors = torch.linalg.eigh(product)
    variances, vectors = variances.flip(0)[:most], vectors.flip(1)[:, :most]
    real = variances > _RANK * variances[0].clamp_min(_TINY)
    sds, vectors = variances[real].sqrt(), vectors[:, real]
    if by_rows:
        vectors = (centred.T @ vectors.float()).double() / (sds * math.sqrt(count))
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return (vectors * largest.sign()).float(), sds.float()
