"""Public feature maps: what a small softmax head sees when it is trained under differential privacy.

A map is fitted on the public alignment set alone, so it costs no privacy and is the same for everybody. It ends in

    phi(x) = (z, k) / ||(z, k)||,      so ||phi(x)|| = 1

with a constant k for the head's bias: the gradient phi (e_y - p)^T of a record's cross-entropy is then never longer
than sqrt(2), and at p = 1 / classes never longer than 1. Noise is the same in every direction of phi, hence few
directions, none of them faint:

- images: a scattering transform s, asinh(s / u) with u a tenth of its mean size (a logarithm that zero and negative
  numbers survive), each feature divided by its spread (plus a tenth of the average), the principal components of the
  alignment set, each divided by the square root of its standard deviation. That is half way between raw components
  (the first few are nearly all of the norm) and white ones (the last are mostly noise).
- tables: columns standardised, then random Fourier features cos(w x), sin(w x), w ~ N(0, I / l^2), of the Gaussian
  kernel exp(-|x - x'|^2 / (2 l^2)) whose l is the median distance in the alignment set (Rahimi and Recht 2007).

Numbers from elsewhere are not trusted with the norm: `unit_rows` sets it on whatever a map produced.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features import scattering as wavelets

Kind = Literal["auto", "scattering", "fourier"]

_SHRINK = 1 - 1e-6  # rounding to single precision must not push a norm above one
_CONSTANT = 1e-5  # a column of a table whose spread is a smaller part of its size than this is constant
_UNIT = 0.1  # of the mean size of scattering features: where asinh bends
_FLOOR = 0.1  # of the average spread, added to the spread of every scattering feature
_RANK = 1e-6  # principal components with a smaller part of the first one's variance than this are rounding
_TINY = torch.finfo(torch.float32).tiny
_MOST_POINTS = 4000  # of the alignment set that are looked at: the eigenproblem grows with their third power
_MOST_PAIRED = 1000  # of them, to find the median distance
_IMAGES = 256  # transformed at once
_LIMITS = (5, 16)  # scales and orientations that a map from elsewhere may ask for


def unit_rows(v: Tensor) -> Tensor:
    """Rows of length one, never more in floating point; a row that is zero or not finite becomes zero.

    A record that cannot be represented then contributes nothing: an error would tell that it is there.
    """
    double = v.double()
    norms = double.norm(dim=1, keepdim=True)
    usable = norms.isfinite() & (norms > 0)
    return torch.where(usable, double / torch.where(usable, norms, 1.0) * _SHRINK, 0.0).float()


@dataclass(frozen=True)
class FeatureMap:
    """phi: a function of records, given by single-precision tensors that can be stored and sent by name."""

    layout: Tensor  # (channels, height, width, scales, orientations) of images, or (columns) of a table
    unit: Tensor  # [1]: u, for images; 1 and not used for tables
    centre: Tensor  # [f], of asinh(s / u) or of the columns
    basis: Tensor  # [f, b]: directions, with all factors
    constant: Tensor  # [1]: the coordinate k

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value.dtype != torch.float32 or not bool(value.isfinite().all()):
                raise ValueError(f"'{field.name}' of a feature map must be finite and torch.float32")
        if self.layout.shape not in {(1,), (5,)} or not bool(((self.layout >= 1) & (self.layout % 1 == 0)).all()):
            raise ValueError(f"'layout' of a feature map is {self.layout.tolist()}: must be 1 or 5 whole numbers")
        if self.is_scattering and any(n > most for n, most in zip(self._sizes[3:], _LIMITS, strict=True)):
            raise ValueError(f"'layout' of a feature map asks for {self._sizes[3:]}: must be at most {_LIMITS}")
        rows = wavelets.features(self._shape, *self._sizes[3:]) if self.is_scattering else self._sizes[0]
        if self.basis.dim() != 2 or len(self.basis) != rows or self.centre.shape != (rows,):
            raise ValueError(f"'basis' and 'centre' of a feature map must have {rows} rows")
        if self.constant.shape != (1,) or self.unit.shape != (1,):
            raise ValueError("'constant' and 'unit' of a feature map must be one number each")

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.layout.tolist())

    @property
    def _shape(self) -> tuple[int, int, int]:
        channels, height, width = self._sizes[:3]
        return channels, height, width

    @property
    def is_scattering(self) -> bool:
        return len(self.layout) == 5

    @property
    def dimensions(self) -> int:
        """The length of phi, with its constant."""
        return self.basis.shape[1] * (1 if self.is_scattering else 2) + 1

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "FeatureMap":
        """The map that `tensors` gave; raises a ValueError if these are not a map's."""
        names = {field.name for field in fields(cls)}
        if tensors.keys() != names:
            raise ValueError(f"a feature map consists of {sorted(names)}, not of {sorted(tensors)}")
        return cls(**tensors)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The phi of each record [n, dimensions], with ||phi|| = 1; zero for a record that has no finite features."""
        given, shape = tuple(x.shape[1:]), self._shape if self.is_scattering else self._sizes
        if (given if self.is_scattering else (math.prod(given),)) != shape:
            raise ValueError(f"records have shape {given}: this feature map takes {shape}")
        parts = [self._coordinates(part) for part in x.split(_IMAGES)]
        z = torch.cat(parts) if parts else torch.empty(0, self.dimensions - 1)
        return unit_rows(torch.cat([z, self.constant.expand(len(z), 1)], 1))

    def _coordinates(self, x: Tensor) -> Tensor:
        if self.is_scattering:
            scattered = wavelets.scattering(x, *self._sizes[3:])
            return (scattered.div_(self.unit).asinh_() - self.centre) @ self.basis
        angles = (x.flatten(1).float() - self.centre) @ self.basis
        return torch.cat([angles.cos(), angles.sin()], 1)


def fit_features(
    alignment: Tensor, kind: Kind = "auto", dimensions: int = 100, seed: int = 0, scales: int | None = None
) -> FeatureMap:
    """A feature map from public records alone: the same records and seed give the same bits.

    `auto` takes scattering for images of at least 8 x 8 pixels and Fourier features for anything else. `dimensions`
    counts the constant. Where the records span fewer directions than asked for, the rest of phi is zero; Fourier
    features come in pairs, so an even number is lowered by one. `scales` is the scattering transform's J, by default
    what `scattering.default_scales` says.
    """
    if len(alignment) == 0 or alignment.dim() < 2 or not bool(alignment.isfinite().all()):
        raise ValueError("the alignment set must hold at least one record, and finite numbers only")
    if dimensions < 3:
        raise ValueError(f"dimensions is {dimensions}: must be at least 3")
    if kind == "auto":
        kind = "scattering" if alignment.dim() == 4 and min(alignment.shape[2:]) >= 8 else "fourier"
    stream = Stream((seed, "features"))
    with repeatable(stream), torch.no_grad():
        generator = stream.child("points").torch()
        if len(alignment) > _MOST_POINTS:
            alignment = alignment[torch.randperm(len(alignment), generator=generator)[:_MOST_POINTS]]
        if kind == "scattering":
            return _fit_scattering(alignment, dimensions - 1, scales)
        return _fit_fourier(alignment.flatten(1).float(), (dimensions - 1) // 2, generator)


def _fit_scattering(images: Tensor, components: int, scales: int | None) -> FeatureMap:
    if images.dim() != 4:
        raise ValueError(f"scattering needs images, not records of shape {tuple(images.shape[1:])}")
    scales, orientations = scales or wavelets.default_scales(*images.shape[2:]), 8
    found = wavelets.scattering(images, scales, orientations)
    if not bool(found.isfinite().all()):
        raise ValueError("the alignment set's numbers are too large")
    unit = (_UNIT * found.double().abs().mean()).clamp_min(_TINY).float().view(1)
    found.div_(unit).asinh_()
    centre = found.double().mean(0).float()
    found -= centre
    spread = found.double().square().mean(0).sqrt()
    # Without the average, features of corners where nearly every image is blank would be blown up.
    factor = (1 / (spread + _FLOOR * spread.mean()).clamp_min(_TINY)).float()
    directions, sds = _principal(found.mul_(factor), components)
    basis = torch.zeros(len(centre), components)
    basis[:, : len(sds)] = factor.unsqueeze(1) * directions / sds.sqrt()
    # The half-whitened components' mean square is the sum of sds^2 / sds; the constant gets as much as all of them.
    size = float(sds.sum().sqrt()) if len(sds) else 1.0
    layout = torch.tensor([*images.shape[1:], scales, orientations], dtype=torch.float32)
    return FeatureMap(layout, unit, centre, basis, torch.tensor([size]))


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


def _fit_fourier(table: Tensor, pairs: int, generator: torch.Generator) -> FeatureMap:
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
    layout = torch.tensor([table.shape[1]], dtype=torch.float32)
    # cos^2 + sin^2 = 1 for each pair; the constant gets as much as all of them.
    return FeatureMap(layout, torch.ones(1), centre.float(), basis.float(), torch.tensor([math.sqrt(pairs)]))
