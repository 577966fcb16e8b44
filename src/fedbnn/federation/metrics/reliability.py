"""Reliability bins, and the calibration errors ECE and MCE that are read off them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.counts import Counts
from fedbnn.federation.metrics.predictions import Floats, Ints, checked

BINS = 15


@dataclass(frozen=True, eq=False)
class ReliabilityBins(Counts):
    """Predictions counted by the confidence of their top label; sums, so that bins of clients can be added.

    Attributes:
        edges: the bins + 1 borders, ascending.
        count: predictions in each bin.
        confidence_sum: sum of their confidences.
        correct_sum: how many of them are right.
    """

    WHAT = "reliability bins"
    WHOLE = ("count", "correct_sum")

    count: Ints
    confidence_sum: Floats
    correct_sum: Ints

    @property
    def confidence(self) -> Floats:
        """Mean confidence of each bin, nan where it is empty."""
        return _mean(self.confidence_sum, self.count)

    @property
    def accuracy(self) -> Floats:
        """Share of right predictions in each bin, nan where it is empty."""
        return _mean(self.correct_sum, self.count)

    @property
    def ece(self) -> float:
        """Expected calibration error: sum_b n_b/n |accuracy_b - confidence_b| (Guo et al. 2017, eq. 3)."""
        n = self.count.sum()
        return float(np.abs(self.correct_sum - self.confidence_sum).sum() / n) if n else float("nan")

    @property
    def mce(self) -> float:
        """Maximum calibration error: max |accuracy_b - confidence_b| over non-empty bins (ibid., eq. 5)."""
        filled = self.count > 0
        gaps = np.abs(self.correct_sum - self.confidence_sum)[filled] / self.count[filled]
        return float(gaps.max()) if gaps.size else float("nan")


def reliability(probs: ArrayLike, labels: ArrayLike, bins: int = BINS) -> ReliabilityBins:
    """Top-label predictions in equal-width bins that are open on the left and closed on the right, (a, b].

    The edges are np.linspace(0, 1, bins + 1) and the rule is np.digitize(confidence, edges, right=True) in
    float64. So a confidence equal to the float64 edge k / bins falls into the bin below it, and one that is a
    rounding step above (a float32 1/15, for example, is 1.5e-9 above the float64 one) into the bin above.
    Confidence 0 belongs to the first bin. Confidence 1 belongs to the last, as does a float32 softmax output
    that rounding has put slightly above 1.
    """
    p, y = checked(probs, labels)
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    top = p.argmax(axis=1)
    confidence = p[np.arange(len(y)), top]
    edges = np.linspace(0.0, 1.0, bins + 1)
    index = np.clip(np.digitize(confidence, edges, right=True), 1, bins) - 1
    return ReliabilityBins(
        edges=edges,
        count=np.bincount(index, minlength=bins).astype(np.int64),
        confidence_sum=np.bincount(index, weights=confidence, minlength=bins).astype(np.float64),
        correct_sum=np.bincount(index[top == y], minlength=bins).astype(np.int64),
    )


def _mean(total: Floats | Ints, count: Ints) -> Floats:
    means = np.full(len(count), np.nan)
    np.divide(total, count, out=means, where=count > 0)
    return means
