"""Public features for a head that learns without noise: as many as pay, and mirrored where that is right.

    z(x) = (c(x) - mean over AD of c) / s,      s such that the variances of z over AD add up to its length

with c the coordinates of the public map of `fedbnn.features`. Unlike phi, which noise wants to be of length one, z is
as long as a record is unlike the alignment set (AD). Where images may be mirrored, c is the mean of both views, so z
does not change when an image is mirrored. Tables have their own columns beside the Fourier features, half of the
variance each: a straight boundary is then as easy to learn as a curved one, and a value far from all others is felt.

`novelty` tells how far a record is from all of AD: 1 is as far as one in a hundred points like those of AD. A point of
AD had a part in its principal components and is nearer than a record that had none, so each counts as if it were left
out: with q its sum of whitened squares among n points, the others have it at n q / (n - 1 - q) (Sherman and Morrison).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.feature_map import FeatureMap
from fedbnn.features.feature_store import on_disk
from fedbnn.features.maps import fit_features
from fedbnn.features.plain_map import PlainMap
from fedbnn.features.public import digest_of, kept
from fedbnn.features.scattering_map import ScatteringMap

PLAIN = "plain"  # the kind that takes records as they are: they are components of a body's features
IMAGE_DIMENSIONS = 400
TABLE_DIMENSIONS = 200
_BATCH = 256  # records mapped at once
_COMMON = 0.99  # share of the alignment set that is not called foreign
_FIRST = 25  # coordinates in the smallest set that distances are measured in
_FEW = 100  # images in an alignment set, below which distances are plain lengths
_FARTHEST = 1e4  # a coordinate's size beyond which a head's equations would lose all other records to rounding


@dataclass(frozen=True)
class StandardFeatures:
    """Attributes:

    map: gives the coordinates c.
    twice: whether c has to be worked out for an image and for its mirror image.
    columns: mean and factor of a table's own columns; None for images.
    centre: mean of c over the alignment set.
    scale: 1 / s, a factor for each coordinate.
    alignment: z of the alignment set [points, dimensions].
    usual: of each nested set of coordinates, how far the common part of the alignment set is.

    """

    map: FeatureMap
    twice: bool
    columns: tuple[Tensor, Tensor] | None
    centre: Tensor
    scale: Tensor
    digest: str
    alignment: Tensor
    usual: Tensor

    @property
    def dimensions(self) -> int:
        return len(self.centre)

    def __call__(self, x: Tensor) -> Tensor:
        """Z of records [n, dimensions], in double precision; kept for the last so many sets of them."""
        digest = digest_of(self.digest, x)
        return kept(_seen, 64, digest, lambda: on_disk(digest, lambda: self._standard(x)))

    def novelty(self, z: Tensor) -> Tensor:
        """The largest distance of z from the alignment set over nested sets of coordinates, the usual being 1."""
        return (_distances(z, self.alignment, whole=_few(self.map, self.alignment)) / self.usual).amax(1)

    def _standard(self, x: Tensor) -> Tensor:
        with repeatable(Stream(("standard",))):  # one thread: the same bits everywhere
            z = (_coordinates(self.map, self.twice, self.columns, x) - self.centre) * self.scale
            return z.clamp(-_FARTHEST, _FARTHEST)


def standard_features(alignment: Tensor, kind: str, mirrored: bool) -> StandardFeatures:
    """Worked out once for an alignment set in a process that serves few of them in turn.

    `kind` is one of `fit_features`, or PLAIN.
    """
    digest = digest_of(alignment, kind, "mirrored" if mirrored else "as they are")
    return kept(_known, 4, digest, lambda: _work_out(alignment, kind, mirrored, digest))


_known: dict[str, StandardFeatures] = {}
_seen: dict[str, Tensor] = {}


def _work_out(alignment: Tensor, kind: str, mirrored: bool, digest: str) -> StandardFeatures:
    image = alignment.dim() == 4
    with repeatable(Stream(("standard",))):
        try:
            dimensions = IMAGE_DIMENSIONS if image else TABLE_DIMENSIONS
            feature_map = (
                PlainMap.fit(alignment, dimensions + 1, Stream(("plain",)).torch())
                if kind == PLAIN
                else fit_features(alignment, kind, dimensions + 1, mirrored=mirrored)
            )
        except ValueError as error:
            raise UserError(f"privacy.features = '{kind}': {error}") from None
        columns = None if image or kind == PLAIN else _columns(alignment)
        twice = mirrored and image and not isinstance(feature_map, ScatteringMap)
        c = _coordinates(feature_map, twice, columns, alignment)
        centre = c.mean(0)
        variance = (c - centre).square().mean(0)
        own = 0 if columns is None else len(columns[0])
        scale = torch.cat([_factor(variance[:own]), _factor(variance[own:])])
        scale = scale * (len(scale) / max(1, int(own > 0) + int(own < len(scale)))) ** 0.5
        z = (c - centre) * scale
        digest = digest_of(digest, z)  # the same name may stand for other features after a change of code
        distances = _distances(z, z, left_out=feature_map.principal, whole=_few(feature_map, z))
        usual = distances.quantile(_COMMON, 0).clamp_min(1e-12)
        usual = usual * (distances / usual).amax(1).quantile(_COMMON).clamp_min(1e-12)
        if _few(feature_map, z):  # the farthest of few points is near what others may be
            usual = usual * (1 + _FEW / 5 / len(z))
    return StandardFeatures(feature_map, twice, columns, centre, scale, digest, z, usual)


def _factor(variance: Tensor) -> Tensor:
    """The same factor for all of a block's coordinates, such that their variances add up to one."""
    total = variance.sum()
    return torch.full_like(variance, float(total.rsqrt()) if total > 0 else 0.0)


def _columns(table: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1 / deviation of each column; a constant one counts for nothing."""
    values = table.flatten(1).double()
    mean, deviation = values.mean(0), values.std(0, correction=0)
    varies = deviation > 1e-5 * mean.abs().clamp_min(1e-12)
    return mean, torch.where(varies, 1 / deviation.where(varies, torch.ones(())), 0.0)


@torch.no_grad()
def _coordinates(feature_map: FeatureMap, twice: bool, columns: tuple[Tensor, Tensor] | None, x: Tensor) -> Tensor:
    parts = []
    for batch in x.split(_BATCH):
        c = feature_map.coordinates(batch).double()
        if twice:
            c = (c + feature_map.coordinates(batch.flip(3)).double()) / 2
        if columns is not None:
            c = torch.cat([(batch.flatten(1).double() - columns[0]) * columns[1], c], 1)
        parts.append(c)
    return torch.cat(parts)


def _few(feature_map: FeatureMap, alignment: Tensor) -> bool:
    """Whether principal components of so few points tell nothing of the directions in which others vary."""
    return feature_map.principal and len(alignment) < _FEW


def _distances(z: Tensor, alignment: Tensor, left_out: bool = False, whole: bool = False) -> Tensor:
    """Mean squares of whitened coordinates, over the first 25, 50, 100, ... and the most that tell [n, sets].

    Among n points no point is anywhere near the others in n coordinates, so at most three quarters of that are looked
    at. `left_out`: z is the alignment set, of principal components, and each point is measured by the others. `whole`:
    the squared length of z alone.
    """
    variance = alignment.square().mean(0)
    if whole:
        return z.square().sum(1, keepdim=True) / variance.sum().clamp_min(1e-12)
    real = variance > 1e-9 * variance.max()
    squares = (z[:, real].square() / variance[real])[:, : max(1, len(alignment) * 3 // 4)]
    count = squares.shape[1]
    if count == 0:  # nothing varies in the alignment set: nothing tells what is far from it
        return z.new_zeros(len(z), 1)
    sets = [size for size in (_FIRST * 2**step for step in range(20)) if size < count] + [count]
    totals = squares.cumsum(1)
    if left_out:
        points = len(alignment)
        totals = points * totals / (points - 1 - totals).clamp_min(1e-6 * points)
    return torch.stack([totals[:, size - 1] / size for size in sets], 1)
