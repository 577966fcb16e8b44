"""Features in which curved boundaries are straight: a Gaussian kernel, by points of the alignment set (AD).

    k(z, z') = exp(-|z - z'|^2 / 2 l^2),      l = WIDTH times the median distance between points of AD
    u(x)     = k(z(x), AD) U e^-1/2           so that u(x) u(x') is k(z, z') for points of AD (Williams and Seeger 2001)
    h(x)     = V (u(x) - mean of u) / s

with e and U the largest eigenvalues and their eigenvectors of k(AD, AD), the mean over AD, V the directions in which u
varies over AD at all, and s such that the variances of h over AD add up to its length. z are the standard features of
images (`fedbnn.features.standard`). A straight boundary in h is one that bends where public records lie; far from all
of them h says nothing. That is told by

    open(x)  = 1 - |u(x)|^2

what of k(z, z) = 1 the points of AD leave open: of a Gaussian process with this kernel, the variance that remains where
its values at all of them are known.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.feature_store import on_disk
from fedbnn.features.public import digest_of, kept
from fedbnn.features.standard import StandardFeatures

DIMENSIONS = 600
WIDTH = 0.5
_MOST_POINTS = 2000  # of the alignment set that the kernel is taken at
_LEAST = 1e-9  # of an eigenvalue, against the largest


@dataclass(frozen=True)
class KernelFeatures:
    """Attributes:

    standard: gives z.
    points: z of the points of the alignment set that the kernel is taken at.
    precision: 1 / 2 l^2.
    root: U e^-1/2 [points, eigenvalues].
    turn: V^T / s [eigenvalues, dimensions].
    centre: mean over the alignment set of V u / s.
    alignment: h of the alignment set [points, dimensions].

    """

    standard: StandardFeatures
    points: Tensor
    precision: float
    root: Tensor
    turn: Tensor
    centre: Tensor
    digest: str
    alignment: Tensor

    @property
    def dimensions(self) -> int:
        return len(self.centre)

    def __call__(self, x: Tensor) -> Tensor:
        """H of records [n, dimensions], in double precision."""
        return self._of(x)[:, :-1]

    def open(self, x: Tensor) -> Tensor:
        """Of records [n]."""
        return self._of(x)[:, -1]

    def _of(self, x: Tensor) -> Tensor:
        """Both, side by side; kept for the last so many sets of records."""
        digest = digest_of(self.digest, x)
        return kept(_seen, 64, digest, lambda: on_disk(digest, lambda: self._work_out(self.standard(x))))

    def _work_out(self, z: Tensor) -> Tensor:
        with repeatable(Stream(("kernel",))):  # one thread: the same bits everywhere
            u = _kernel(z, self.points, self.precision) @ self.root
            left = (1 - u.square().sum(1, keepdim=True)).clamp_min(0)
            return torch.cat([u @ self.turn - self.centre, left], 1)


def kernel_features(standard: StandardFeatures) -> KernelFeatures:
    """Worked out once for an alignment set in a process that serves few of them in turn."""
    return kept(_known, 4, standard.digest, lambda: _work_out(standard))


_known: dict[str, KernelFeatures] = {}
_seen: dict[str, Tensor] = {}


def _work_out(standard: StandardFeatures) -> KernelFeatures:
    z, stream = standard.alignment, Stream(("kernel",))
    with repeatable(stream):
        points = z[torch.randperm(len(z), generator=stream.torch())[:_MOST_POINTS]] if len(z) > _MOST_POINTS else z
        apart = torch.pdist(points[:1000]) if len(points) > 1 else torch.ones(1, dtype=z.dtype)
        median = float(apart.median()) or 1.0  # all points may be the same one
        precision = 1 / (2 * (WIDTH * median) ** 2)
        e, directions = torch.linalg.eigh(_kernel(points, points, precision))
        real = (e > _LEAST * e[-1]).nonzero()[-DIMENSIONS:, 0]
        root = directions[:, real] * e[real].rsqrt()
        u = _kernel(z, points, precision) @ root
        varied, turn = torch.linalg.eigh((u - u.mean(0)).T @ (u - u.mean(0)) / len(u))
        real = varied > _LEAST
        turn = turn[:, real] * (real.sum() / varied[real].sum()).sqrt()
        h = u @ turn
        centre = h.mean(0)
    digest = digest_of(standard.digest, root, turn)
    return KernelFeatures(standard, points, precision, root, turn, centre, digest, h - centre)


def _kernel(z: Tensor, points: Tensor, precision: float) -> Tensor:
    square = z.square().sum(1, keepdim=True) + points.square().sum(1) - 2 * z @ points.T
    return torch.exp(-precision * square.clamp_min(0))
