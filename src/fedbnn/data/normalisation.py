"""The scaling of inputs, fitted on public records only."""

import numpy as np

from fedbnn.data.dataset import Floats

CONSTANT_BELOW = 1e-6


def fit_normalisation(x: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation per channel (C, 1, 1) of images or feature (F,) of tables and of sequences' steps.

    A spread below 1e-6 counts as constant and becomes 1; no records at all give the identity (0 and 1).
    """
    axes = {2: (0,), 3: (0, 1), 4: (0, 2, 3)}[x.ndim]
    shape = (x.shape[1], 1, 1) if x.ndim == 4 else x.shape[-1:]
    if len(x) == 0:
        return np.zeros(shape, dtype=np.float32), np.ones(shape, dtype=np.float32)
    mean = x.mean(axis=axes, dtype=np.float64).reshape(shape)
    std = x.std(axis=axes, dtype=np.float64).reshape(shape)
    return mean.astype(np.float32), np.where(std < CONSTANT_BELOW, 1.0, std).astype(np.float32)
