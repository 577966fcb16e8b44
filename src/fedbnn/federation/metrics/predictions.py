"""The one check that every metric makes of its input."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def checked(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    """The two arrays as float64 (n, classes) and int64 (n,), or a ValueError that says what is wrong.

    Rows are not required to sum to one exactly: float32 softmax outputs do not.
    """
    p = np.asarray(probs, dtype=np.float64)
    y = np.asarray(labels)
    if p.ndim != 2 or y.ndim != 1 or len(p) != len(y):
        raise ValueError(f"probs must be (n, classes) and labels (n,), got {p.shape} and {y.shape}")
    if p.size == 0:
        raise ValueError("no predictions to score: probs and labels are empty")
    if not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"labels must be integers, got {y.dtype}")
    if not np.isfinite(p).all():
        raise ValueError("probs holds values that are not finite")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(f"labels must be in 0..{p.shape[1] - 1}, got {y.min()}..{y.max()}")
    return p, y.astype(np.int64)
