"""Uncertainty of right against wrong predictions, as a pair of histograms that can be added."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.counts import Counts
from fedbnn.federation.metrics.predictions import Ints

BINS = 20


@dataclass(frozen=True, eq=False)
class UncertaintyHistogram(Counts):
    """Predictions counted by their uncertainty, as a share of the greatest possible one.

    Attributes:
        edges: 21 borders from 0 (certain) to 1 (every class equally probable).
        right: right predictions in each bin.
        wrong: wrong predictions in each bin.
    """

    WHAT = "uncertainty histograms"
    WHOLE = ("right", "wrong")

    right: Ints
    wrong: Ints

    @property
    def auroc(self) -> float:
        """Chance that a wrong prediction is more uncertain than a right one, those in one bin counting half.

        The Mann-Whitney statistic of the binned values; nan unless there are predictions of both kinds.
        """
        pairs = int(self.right.sum()) * int(self.wrong.sum())
        if pairs == 0:
            return float("nan")
        right_below = np.cumsum(self.right) - self.right
        return float(np.sum(self.wrong * (right_below + self.right / 2)) / pairs)


def uncertainty_histogram(values: ArrayLike, right: ArrayLike, classes: int) -> UncertaintyHistogram:
    """Histogram of `values` / ln(classes), clipped to [0, 1], split by whether the prediction is right.

    `values` are entropies or mutual informations in nats, whose greatest value is ln(classes).
    Bins are closed on the left, the last one on both sides (np.histogram).
    """
    u = np.asarray(values, dtype=np.float64)
    hit = np.asarray(right, dtype=np.bool_)
    if u.ndim != 1 or u.shape != hit.shape:
        raise ValueError(f"values and right must both be (n,), got {u.shape} and {hit.shape}")
    if u.size == 0:
        raise ValueError("no uncertainties to count: values is empty")
    if np.isnan(u).any():
        raise ValueError("values holds entries that are not numbers")
    if classes < 2:
        raise ValueError(f"uncertainty needs at least 2 classes, got {classes}")
    edges = np.linspace(0.0, 1.0, BINS + 1)
    share = np.clip(u / np.log(classes), 0.0, 1.0)
    return UncertaintyHistogram(
        edges=edges,
        right=np.histogram(share[hit], edges)[0].astype(np.int64),
        wrong=np.histogram(share[~hit], edges)[0].astype(np.int64),
    )
