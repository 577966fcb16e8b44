"""Public features in the place of inputs, for every method alike.

They are those that FedBNN's heads have (`fedbnn.features.standard`), fitted on the alignment set alone: wavelet
scattering for images, columns and random Fourier features for tables. They say nothing of any client's record, and all
clients have the same.
"""

from dataclasses import dataclass

import torch

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Floats
from fedbnn.features.standard import StandardFeatures, standard_features


@dataclass(frozen=True, eq=False)
class PublicView:
    """z, a function of normalised inputs."""

    features: StandardFeatures

    @classmethod
    def of(cls, alignment: Floats, mirrored: bool) -> "PublicView":
        if len(alignment) == 0:
            raise UserError('data.inputs = "features", but data.alignment = 0: features are fitted on alignment points')
        return cls(standard_features(torch.from_numpy(alignment), "auto", mirrored))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features.dimensions,)

    def __call__(self, x: Floats) -> Floats:
        seen: Floats = self.features(torch.from_numpy(x)).float().numpy()
        return seen
