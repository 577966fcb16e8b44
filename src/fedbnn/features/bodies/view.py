"""What a client's model sees where it stands on a body: principal components of the body's features.

    z(x) = (c(x) - mean over AD of c) V / s,      s such that the variances of z over AD add up to its length

with c the body's features and V their principal directions over the alignment set (AD), the widest first. AD is public
and the body is, so z says nothing of any client's record, and each client may have a body of its own. Where images may
be mirrored, c is the mean of both views.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.bodies.body import Body, body_of

_RANK = 1e-6  # components with a smaller part of the first one's variance than this are rounding
_FARTHEST = 1e4  # a coordinate's size beyond which equations would lose all other records to rounding


@dataclass(frozen=True, eq=False)
class BodyView:
    """Attributes:

    body: gives c.
    mirrored: whether c is the mean over an image and its mirror image.
    centre: the mean of c over the alignment set.
    directions: V / s [width, components].

    """

    body: Body
    mirrored: bool
    centre: Tensor
    directions: Tensor

    @classmethod
    def of(
        cls, name: str, options: Mapping[str, Any], alignment: NDArray[np.float32], components: int, mirrored: bool
    ) -> "BodyView":
        """The view of the body of this name, fitted on the alignment set as it was loaded."""
        if len(alignment) < 2:
            raise UserError(
                f"body '{name}', but data.alignment = {len(alignment)}: its features are scaled by two points at least"
            )
        body = body_of(name, options, tuple(alignment.shape[1:]))
        c = _features(body, mirrored and alignment.ndim == 4, torch.from_numpy(alignment))
        if not bool(c.isfinite().all()):
            raise UserError(f"body '{name}' gives features of the alignment set that are not finite")
        with repeatable(Stream(("body view",))):  # one thread: the same bits everywhere
            centre = c.mean(0)
            variances, vectors = torch.linalg.eigh((c - centre).T @ (c - centre) / len(c))
            variances, vectors = variances.flip(0)[:components], vectors.flip(1)[:, :components]
            real = variances > _RANK * variances[0].clamp_min(1e-12)
            if not bool(real.any()):
                raise UserError(f"body '{name}' gives the same features for all points of the alignment set")
            largest = vectors.gather(
                0, vectors.abs().argmax(0, keepdim=True)
            )  # whose sign makes V's the same everywhere
            directions = (vectors * largest.sign())[:, real] * (real.sum() / variances[real].sum()).sqrt()
        return cls(body, mirrored and alignment.ndim == 4, centre, directions)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.directions.shape[1],)

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Z of records as they were loaded."""
        c = _features(self.body, self.mirrored, torch.from_numpy(x))
        with repeatable(Stream(("body view",))):
            z = ((c - self.centre) @ self.directions).nan_to_num(nan=_FARTHEST).clamp(-_FARTHEST, _FARTHEST)
        seen: NDArray[np.float32] = z.float().numpy()
        return seen


def _features(body: Body, mirrored: bool, x: Tensor) -> Tensor:
    if len(x) == 0:
        return torch.empty(0, body.width, dtype=torch.float64)
    c = body(x).double()
    return (c + body(x.flip(3)).double()) / 2 if mirrored else c
