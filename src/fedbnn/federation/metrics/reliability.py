"""Reliability bins, and the calibration errors ECE and MCE that are read off them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.predictions import Floats, Ints, checked


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Predictions counted by the confidence of their top label; sums, so that bins of clients can be added.

    Attributes:
        edges: the bins + 1 borders, ascending.
        count: predictions in each bin.
        confidence_sum: sum of their confidences.
        correct_sum: how many of them are right.
    """

    edges: Floats
    count: Ints
    confidence_sum: Floats
    correct_sum: Ints

    def __post_init__(self) -> None:
        sizes = {len(self.edges) - 1, len(self.count), len(self.confidence_sum), len(self.correct_sum)}
        if len(sizes) != 1 or len(self.count) == 0:
            raise ValueError("reliability bins need one count and two sums for each pair of edges")

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

    def __add__(self, other: "ReliabilityBins") -> "ReliabilityBins":
        """Both sets of predictions pooled. The edges must be the same."""
        if not np.array_equal(self.edges, other.edges):
            raise ValueError("reliability bins with different edges cannot be added")
        return ReliabilityBins(
            self.edges,
            self.count + other.count,
            self.confidence_sum + other.confidence_sum,
            self.correct_sum + other.correct_sum,
        )

    def to_dict(self) -> dict[str, list[float] | list[int]]:
        return {
            "edges": self.edges.tolist(),
            "count": self.count.tolist(),
            "confidence_sum": self.confidence_sum.tolist(),
            "correct_sum": self.correct_sum.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ReliabilityBins":
        try:
            return cls(
                np.asarray(values["edges"], dtype=np.float64),
                np.asarray(values["count"], dtype=np.int64),
                np.asarray(values["confidence_sum"], dtype=np.float64),
                np.asarray(values["correct_sum"], dtype=np.int64),
            )
        except KeyError as missing:
            raise ValueError(f"reliability bins without {missing}") from None


def reliability(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> ReliabilityBins:
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
