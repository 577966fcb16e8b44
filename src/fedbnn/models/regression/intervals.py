"""Intervals that hold the true number with a chosen probability, whatever the model: split-conformal prediction.

The score of a record is how far its target is from the predicted mean, in units of what the model takes that to be
(Papadopoulos, Gammerman, Vovk 2008; Lei et al. 2018):

    s(x, y) = |y - mean(x)| / sd(x),        interval(x) = mean(x) -+ q sd(x)

with q the threshold of `fedbnn.models.conformal`: of n records that no training saw, the k-th smallest score,
k = ceil((n + 1)(1 - alpha)), infinite where k > n. If these and a new record are exchangeable, the interval holds the
target with probability at least 1 - alpha, and given the n records its coverage follows Beta(k, n + 1 - k) where no
two scores tie. A model that is unsure of a record gives it a wider interval; one that is wrong about its own doubt
gives intervals that are too wide here and too narrow there, and the promise holds on average all the same.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from fedbnn.models.conformal import Floats, check_alpha, rank, threshold


@dataclass(frozen=True)
class ConformalIntervals:
    """A threshold that was fitted to records that no training saw.

    Attributes:
        alpha: how often the true number may be outside.
        records: how many it was fitted to.
        threshold: q, in predicted standard deviations; infinite where there are too few records for a promise.

    """

    alpha: float
    records: int
    threshold: float

    @classmethod
    def fit(cls, mean: ArrayLike, sd: ArrayLike, targets: ArrayLike, alpha: float) -> "ConformalIntervals":
        """From what a model says of n records with targets (none is allowed)."""
        check_alpha(alpha)
        scores = scores_of(mean, sd, targets)
        return cls(alpha, len(scores), threshold(scores, alpha))

    def intervals(self, mean: ArrayLike, sd: ArrayLike) -> tuple[Floats, Floats]:
        """Lower and upper ends for new records."""
        middle, reach = np.asarray(mean, dtype=np.float64), self.threshold * np.asarray(sd, dtype=np.float64)
        return middle - reach, middle + reach

    def likely_coverage(self, share: float = 0.9) -> tuple[float, float] | None:
        """Where the coverage lies with this probability, equal tails, over the records that it was fitted to.

        None where every number is inside.
        """
        if math.isinf(self.threshold):
            return None
        k = rank(self.records, self.alpha)
        low, high = betaincinv(k, self.records + 1 - k, [(1 - share) / 2, (1 + share) / 2])
        return float(low), float(high)


def scores_of(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike) -> Floats:
    """|y - mean| / sd."""
    m, s, y = (np.asarray(one, dtype=np.float64) for one in (mean, sd, targets))
    scores: Floats = np.abs(y - m) / s
    return scores
