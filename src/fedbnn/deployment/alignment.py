"""The public alignment set at a party: alignment.npz, checked against the terms, and the scaling fitted on it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Floats
from fedbnn.data.normalisation import fit_normalisation
from fedbnn.data.npz_source import NpzFile
from fedbnn.deployment.terms import Terms, alignment_hash
from fedbnn.features.bodies.view import BodyView
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import TrainingSettings, channels_last

ARRAY = "x"


@dataclass(frozen=True, eq=False)
class Alignment:
    """Inputs as loaded. All inputs of a run are scaled by their mean and spread, so that every party can do it."""

    raw: Floats

    def normalised(self, x: Floats) -> Floats:
        """(x - mean) / std, as `FederatedData.seen` for raw inputs."""
        mean, std = self._scaling
        return (x - mean) / std

    def seen_by(self, model: ModelSettings, training: TrainingSettings) -> Callable[[Floats], Floats]:
        """How a model sees inputs as loaded: scaled, or as features of the body that it stands on."""
        if not model.body:
            return self.normalised
        mirrored = "flip" in training.augment
        return BodyView.of(model.body, model.body_options, self.raw, model.components, mirrored)

    def tensor(self) -> Tensor:
        """The inputs as clients and server compute with them."""
        return channels_last(torch.from_numpy(self.normalised(self.raw)))

    @cached_property
    def _scaling(self) -> tuple[Floats, Floats]:
        return fit_normalisation(self.raw)


def write_alignment(path: Path, raw: Floats) -> None:
    """As `read_alignment` reads it."""
    np.savez_compressed(path, x=np.ascontiguousarray(raw))


def read_alignment(path: Path, terms: Terms) -> Alignment:
    """The alignment set of a file, if it is the one that was agreed on."""
    origin, agreed = f"alignment = '{path}'", terms.alignment
    raw = NpzFile(path, origin).array(ARRAY)
    if raw.dtype != np.float32:
        raise UserError(f"{origin}: {ARRAY} is {raw.dtype}; float32 is needed")
    shape = (agreed.points, *terms.input_shape)
    if raw.shape != shape:
        raise UserError(f"{origin}: {ARRAY} has shape {raw.shape}, agreed was {shape} ({agreed.source})")
    raw = np.ascontiguousarray(raw)
    if (actual := alignment_hash(raw)) != agreed.sha256:
        raise UserError(
            f"{origin} is not the alignment set that was agreed on ({agreed.source}): its sha256 is {actual}, "
            f"agreed was {agreed.sha256}; get the right file, and do not take part until you have it"
        )
    if not np.isfinite(raw).all():
        raise UserError(f"{origin}: {ARRAY} holds values that are not finite")
    return Alignment(raw)
