"""Targets that are real numbers: as arrays, as texts, and the scale that was declared for them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Floats, Targets
from fedbnn.models.regression import Scale


def declared_scale(mean: float, sd: float, usual: Scale | None = None) -> Scale:
    """The scale that settings declare; where sd is 0, the one that is published with a data set."""
    if sd > 0:
        return Scale(mean, sd)
    if usual is None or mean != 0:
        raise UserError(
            "data.task = 'regression' needs data.target_mean and data.target_sd: about where targets lie and how far "
            "they go from there, known before any record is seen (they are public, and never worked out from records)"
        )
    return usual


def measured(origin: str, key: str, y: NDArray[np.generic]) -> Floats:
    """An array of targets as real numbers."""
    column = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if column.dtype.kind not in "iuf" or column.ndim != 1:
        raise UserError(f"{origin}: {key} is {y.dtype} of shape {y.shape}; one number a record is needed")
    with np.errstate(over="ignore"):
        return column.astype(np.float32)


def target_texts(y: Targets, class_names: Sequence[str]) -> list[str]:
    """Each target as a text that tells it from every other one: the name of its class, or its number."""
    if y.dtype.kind == "f":
        return [f"{value:.9g}" for value in y.tolist()]  # 9 digits: every float32
    return [class_names[label] for label in y]
