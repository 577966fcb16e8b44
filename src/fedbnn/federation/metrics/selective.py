"""How accurate the most certain predictions are: the risk-coverage curve, in counts that can be added."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.counts import Counts
from fedbnn.federation.metrics.predictions import Floats, Ints, checked

SLICES = 20


@dataclass(frozen=True, eq=False)
class RankedCounts(Counts):
    """A client's predictions in the order of their confidence, the most certain first, cut into equal slices.

    Of several clients together, the first s slices are what is answered where each client answers its own most certain
    s / 20 (El-Yaniv and Wiener 2010: the curve of accuracy, or risk, over coverage).

    Attributes:
        edges: shares of a client's predictions, from 0 (the most certain) to 1.
        count: predictions in each slice.
        correct: how many of them are right.
    """

    WHAT = "ranked counts"
    WHOLE = ("count", "correct")

    count: Ints
    correct: Ints

    @property
    def coverage(self) -> Floats:
        """Which share of all predictions is in the first 1, 2, ... slices."""
        share: Floats = np.cumsum(self.count) / max(int(self.count.sum()), 1)
        return share

    @property
    def accuracy(self) -> Floats:
        """Share of right predictions in the first 1, 2, ... slices; nan where these are empty."""
        count = np.cumsum(self.count)
        means = np.full(len(count), np.nan)
        np.divide(np.cumsum(self.correct), count, out=means, where=count > 0)
        return means


def ranked_counts(probs: ArrayLike, labels: ArrayLike, slices: int = SLICES) -> RankedCounts:
    """Prediction i of n in order of confidence falls into slice floor(i slices / n).

    Of predictions with one and the same confidence the wrong ones come first: a tie never flatters.
    """
    p, y = checked(probs, labels)
    right = p.argmax(axis=1) == y
    order = np.lexsort((right, -p.max(axis=1)))
    slice_of = np.arange(len(y)) * slices // len(y)
    return RankedCounts(
        edges=np.linspace(0.0, 1.0, slices + 1),
        count=np.bincount(slice_of, minlength=slices).astype(np.int64),
        correct=np.bincount(slice_of[right[order]], minlength=slices).astype(np.int64),
    )
