"""The kinds of public feature maps by name, and how one is fitted."""

from typing import Literal

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.feature_map import FeatureMap
from fedbnn.features.fourier_map import FourierMap
from fedbnn.features.scattering_map import ScatteringMap

Kind = Literal["auto", "scattering", "fourier"]

KINDS: dict[str, type[FeatureMap]] = {"scattering": ScatteringMap, "fourier": FourierMap}

_MOST_POINTS = 4000  # of the alignment set that are looked at: the eigenproblem grows with their third power


def fit_features(alignment: Tensor, kind: Kind = "auto", dimensions: int = 100, seed: int = 0) -> FeatureMap:
    """A feature map from public records alone: the same records and seed give the same bits.

    `auto` takes scattering for images of at least 8 x 8 pixels and Fourier features for anything else. `dimensions`
    counts the constant.
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
        return KINDS[kind].fit(alignment, dimensions, generator)
