"""The kinds of public feature maps by name, and how one is fitted.

`auto`, `scattering` or `fourier`, or a user's own as `package.module:Class`, a subclass of `FeatureMap`.
"""

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.imports import imported
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.feature_map import FeatureMap
from fedbnn.features.fourier_map import FourierMap
from fedbnn.features.scattering_map import ScatteringMap

AUTO = "auto"
KINDS: dict[str, type[FeatureMap]] = {"scattering": ScatteringMap, "fourier": FourierMap}

_MOST_POINTS = 4000  # of the alignment set that are looked at: the eigenproblem grows with their third power


def find_map(kind: str) -> type[FeatureMap]:
    """The class of this name."""
    if kind in KINDS:
        return KINDS[kind]
    cls = imported(kind, f"privacy.features = '{kind}'")
    if not (isinstance(cls, type) and issubclass(cls, FeatureMap)):
        raise UserError(f"privacy.features = '{kind}' is not a class that is derived from fedbnn.features.FeatureMap")
    return cls


def fit_features(
    alignment: Tensor, kind: str = AUTO, dimensions: int = 100, seed: int = 0, mirrored: bool = False
) -> FeatureMap:
    """A feature map from public records alone: the same records and seed give the same bits.

    `auto` takes scattering for images of at least 8 x 8 pixels and Fourier features for anything else. `dimensions`
    counts the constant. `mirrored` makes scattering the same for an image and its mirror image; other kinds cannot.
    """
    if len(alignment) == 0 or alignment.dim() < 2 or not bool(alignment.isfinite().all()):
        raise ValueError("the alignment set must hold at least one record, and finite numbers only")
    if dimensions < 3:
        raise ValueError(f"dimensions is {dimensions}: must be at least 3")
    if kind == AUTO:
        kind = "scattering" if alignment.dim() == 4 and min(alignment.shape[2:]) >= 8 else "fourier"
    stream = Stream((seed, "features"))
    with repeatable(stream), torch.no_grad():
        generator = stream.child("points").torch()
        if len(alignment) > _MOST_POINTS:
            alignment = alignment[torch.randperm(len(alignment), generator=generator)[:_MOST_POINTS]]
        if kind == "scattering":
            return ScatteringMap.fit(alignment, dimensions, generator, mirrored)
        return find_map(kind).fit(alignment, dimensions, generator)
