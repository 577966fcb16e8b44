"""Public features in the place of inputs, for every method alike.

They are fitted on the alignment set alone: wavelet scattering for images, columns and random Fourier features for
tables (`fedbnn.features.standard`), or those that FedBNN's heads have, a kernel on them (`fedbnn.features.kernel`).
They say nothing of any client's record, and all clients have the same.
"""

from dataclasses import dataclass

import torch

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Floats
from fedbnn.features.bodies.view import BodyView
from fedbnn.features.kernel import KernelFeatures, kernel_features
from fedbnn.features.standard import StandardFeatures, standard_features


@dataclass(frozen=True, eq=False)
class PublicView:
    """z, a function of normalised inputs."""

    features: StandardFeatures | KernelFeatures

    @classmethod
    def of(cls, alignment: Floats, inputs: str) -> "PublicView":
        """The view that `data.inputs` names."""
        if len(alignment) == 0:
            raise UserError('data.inputs = "features", but data.alignment = 0: features are fitted on alignment points')
        standard = standard_features(torch.from_numpy(alignment), "auto", "mirrored" in inputs)
        image = alignment.ndim == 4  # a table's features are those of a kernel already
        return cls(kernel_features(standard) if "kernel" in inputs and image else standard)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features.dimensions,)

    def __call__(self, x: Floats) -> Floats:
        seen: Floats = self.features(torch.from_numpy(x)).float().numpy()
        return seen


@dataclass(frozen=True, eq=False)
class InputView:
    """From inputs as loaded to what models see: (x - mean) / std, and public features of this where there are any.

    A model that stands on a body sees the body's features of inputs as they were loaded.

    Attributes:
        loaded_shape: of one record as loaded.

    """

    loaded_shape: tuple[int, ...]
    mean: Floats
    std: Floats
    features: PublicView | BodyView | None = None

    def __call__(self, x: Floats) -> Floats:
        if isinstance(self.features, BodyView):
            return self.features(x)
        scaled: Floats = (x - self.mean) / self.std
        return scaled if self.features is None else self.features(scaled)
