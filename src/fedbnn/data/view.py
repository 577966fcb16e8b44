"""Public features in the place of inputs, for every method alike.

    z(x) = phi(x) / s,      s: the mean over coordinates of phi's standard deviation on the alignment set

phi is the map of `fedbnn.features`, fitted on the alignment set alone: wavelet scattering for images, random
Fourier features for tables. It says nothing of any client's record, and all clients have the same.
"""

from dataclasses import dataclass

import torch

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.data.dataset import Floats
from fedbnn.features.public import DIMENSIONS, Public, public


@dataclass(frozen=True, eq=False)
class PublicView:
    """z, a function of normalised inputs."""

    features: Public

    @classmethod
    def of(cls, alignment: Floats) -> "PublicView":
        if len(alignment) == 0:
            raise UserError('data.inputs = "features", but data.alignment = 0: features are fitted on alignment points')
        return cls(public(torch.from_numpy(alignment), "auto", DIMENSIONS))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features.phi.shape[1],)

    def __call__(self, x: Floats) -> Floats:
        with repeatable(Stream(("view",))):  # one thread: the same bits everywhere
            scaled: Floats = self.features.scaled(torch.from_numpy(x)).numpy()
        return scaled
