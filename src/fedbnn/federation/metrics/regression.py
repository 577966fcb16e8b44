"""Errors of means, and whether distributions hold what they claim: the probability integral transform, in counts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.counts import Counts
from fedbnn.federation.metrics.predictions import Floats, Ints

BINS = 20


@dataclass(frozen=True, eq=False)
class PitCounts(Counts):
    """Targets counted by F(y), the predicted probability of a value up to the one that came (Dawid 1984).

    If distributions are right, F(y) is uniform: every bin holds as many. A hump in the middle tells of distributions
    that are too wide, heavy ends of ones that are too narrow, and a slope of means that are off (Gneiting, Balabdaoui,
    Raftery 2007).

    Attributes:
        edges: 21 borders from 0 to 1.
        count: targets in each bin.
    """

    WHAT = "PIT counts"
    WHOLE = ("count",)

    count: Ints

    @property
    def share(self) -> Floats:
        """Of all targets, the share in each bin; nan where there are none."""
        n = int(self.count.sum())
        return self.count / n if n else np.full(len(self.count), np.nan)

    @property
    def coverage(self) -> tuple[Floats, Floats]:
        """Which share of targets central intervals should hold, 0, 10 % ... 100 %, and which they do."""
        half = len(self.count) // 2
        inner = np.array([self.count[half - step : half + step].sum() for step in range(half + 1)], dtype=np.float64)
        return np.linspace(0.0, 1.0, half + 1), inner / max(int(self.count.sum()), 1)


def pit_counts(values: ArrayLike) -> PitCounts:
    """Of F(y), each within 0 and 1. Bins are closed on the left, the last one on both sides (np.histogram)."""
    u = np.asarray(values, dtype=np.float64)
    if u.ndim != 1 or u.size == 0:
        raise ValueError(f"values must be (n,) and not empty, got {u.shape}")
    if not ((u >= 0) & (u <= 1)).all():
        raise ValueError("values are not all between 0 and 1")
    edges = np.linspace(0.0, 1.0, BINS + 1)
    return PitCounts(edges, np.histogram(u, edges)[0].astype(np.int64))


def rmse(predicted: ArrayLike, targets: ArrayLike) -> float:
    """Root of the mean squared error, in the target's own unit."""
    return float(np.sqrt(np.mean(np.square(_errors(predicted, targets)))))


def mae(predicted: ArrayLike, targets: ArrayLike) -> float:
    """Mean absolute error, in the target's own unit."""
    return float(np.mean(np.abs(_errors(predicted, targets))))


def _errors(predicted: ArrayLike, targets: ArrayLike) -> Floats:
    p, y = np.asarray(predicted, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if p.ndim != 1 or p.shape != y.shape:
        raise ValueError(f"predicted and targets must both be (n,), got {p.shape} and {y.shape}")
    if p.size == 0:
        raise ValueError("no predictions to score: both are empty")
    return p - y
