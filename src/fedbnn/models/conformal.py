"""Prediction sets that hold the true class with a chosen probability, whatever the model: split-conformal prediction.

A score s(x, y) says how badly class y fits record x. From n labelled records that no training saw, the threshold for
a wished rate of misses alpha is (Vovk, Gammerman, Shafer 2005; Papadopoulos et al. 2002)

    q = the k-th smallest of s(x_i, y_i),    k = ceil((n + 1)(1 - alpha)),    infinite where k > n
    C(x) = {y : s(x, y) <= q}

If the n records and a new one (x, y) are exchangeable, then P(y in C(x)) >= 1 - alpha, and it is at most
1 - alpha + 1 / (n + 1) where no two scores tie. The probability is over the n records and the new one together. Given
the n records, and no ties, the coverage follows Beta(k, n + 1 - k) (Vovk 2012). Nothing is promised record by record.

Class by class (Mondrian: Vovk et al. 2005; Sadinle, Lei, Wasserman 2019) each class has a threshold of its own from
its own n_c records, and P(y in C(x) | y = c) >= 1 - alpha for every c. This holds also where classes have become more
or less common, if records within a class look the same. A class with fewer than 1 / alpha - 1 records has an infinite
threshold and is in every set: few records never become a false promise.

Scores, of probabilities p(y | x):

    lac    1 - p(y | x)                                              (Sadinle, Lei, Wasserman 2019), the smallest sets
    aps    sum of p(y' | x) over y' likelier than y  +  u p(y | x)   (Romano, Sesia, Candes 2020)

A set of lac is empty where no class fits as well as the worst of the better 1 - alpha of the n records did: of a model
that is right more often, just the records that it is unsure of. For aps, u is drawn uniformly in the paper; u = 0, as
it is here unless it is given, keeps the guarantee, gives the same set every time, and never an empty one.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from fedbnn.base.errors import UserError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Score = Literal["lac", "aps"]
Within = Literal["client", "class"]
"""Over which records the promise holds: all of a client's together, or those of each class by itself."""


def lac_scores(probs: ArrayLike) -> Floats:
    """1 - p(y | x) of every class, n x classes."""
    return 1.0 - np.asarray(probs, dtype=np.float64)


def aps_scores(probs: ArrayLike, u: ArrayLike = 0.0) -> Floats:
    """The mass of all likelier classes and u times the class's own, n x classes; `u` is one number or one a record.

    Of classes that tie, the first counts as the likelier, as for the predicted class.
    """
    p = np.asarray(probs, dtype=np.float64)
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    share = np.broadcast_to(np.asarray(u, dtype=np.float64).reshape(-1, 1), (len(p), 1))
    before = np.concatenate([np.zeros((len(p), 1)), np.cumsum(ranked, axis=1)[:, :-1]], axis=1)
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, before + share * ranked, axis=1)
    return scores


def scores_of(probs: ArrayLike, score: Score) -> Floats:
    """How badly each class fits each record."""
    return lac_scores(probs) if score == "lac" else aps_scores(probs)


def rank(n: int, alpha: float) -> int:
    """The k = ceil((n + 1)(1 - alpha)) above, with alpha as it is written: 0.1 is a tenth, not the float next to it."""
    return math.ceil((n + 1) * (1 - Fraction(str(alpha))))


def threshold(scores: ArrayLike, alpha: float) -> float:
    """The k-th smallest score; infinite where there are too few for a promise of 1 - alpha."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    k = rank(len(ordered), alpha)
    return float(ordered[k - 1]) if k <= len(ordered) else math.inf


def least_records(alpha: float) -> int:
    """The fewest records with which a threshold is finite: ceil(1 / alpha) - 1."""
    return math.ceil(1 / Fraction(str(alpha))) - 1


@dataclass(frozen=True, eq=False)
class Conformal:
    """Thresholds that were fitted to records that no training saw.

    Attributes:
        alpha: how often the true class may be missing.
        score: how badly a class fits a record.
        within: over which records the promise holds.
        counts: records of each class among those that it was fitted to.
        thresholds: one a class, in one promise for all classes the same one.

    """

    alpha: float
    score: Score
    within: Within
    counts: NDArray[np.int64]
    thresholds: Floats

    @classmethod
    def fit(
        cls, probs: ArrayLike, labels: ArrayLike, alpha: float, score: Score = "aps", within: Within = "client"
    ) -> "Conformal":
        """From the probabilities that a model gives n labelled records (none is allowed), n x classes."""
        check_alpha(alpha)
        check_score(score, within)
        p, y = np.asarray(probs, dtype=np.float64), np.asarray(labels, dtype=np.int64)
        counts = np.bincount(y, minlength=p.shape[1]).astype(np.int64)
        own = scores_of(p, score)[np.arange(len(y)), y]
        if within == "client":
            thresholds = np.full(p.shape[1], threshold(own, alpha))
        else:
            thresholds = np.array([threshold(own[y == label], alpha) for label in range(p.shape[1])])
        return cls(alpha, score, within, counts, thresholds)

    def sets(self, probs: ArrayLike) -> Bools:
        """Which classes are in the set of each new record, n x classes."""
        held: Bools = scores_of(probs, self.score) <= self.thresholds
        return held

    @property
    def records(self) -> int:
        return int(self.counts.sum())

    @property
    def without_promise(self) -> Bools:
        """The classes that are in every set, because there are too few records to leave them out honestly."""
        endless: Bools = np.isinf(self.thresholds)
        return endless

    def likely_coverage(self, share: float = 0.9) -> tuple[float, float] | None:
        """Where the coverage lies with this probability, equal tails, over the records that it was fitted to.

        That is of Beta(k, n + 1 - k): how far the luck of these records may have moved what new ones will find. None
        where nothing is left out, or where each class has a law of its own.
        """
        if self.within == "class" or bool(self.without_promise.any()):
            return None
        k = rank(self.records, self.alpha)
        low, high = betaincinv(k, self.records + 1 - k, [(1 - share) / 2, (1 + share) / 2])
        return float(low), float(high)


def check_alpha(alpha: float) -> None:
    """Raise a UserError unless a set can miss so often."""
    if not (isinstance(alpha, int | float) and 0 < alpha < 1):
        raise UserError(f"alpha = {alpha}: how often a set may miss the true class is above 0 and below 1")


def check_score(score: str, within: str) -> None:
    for name, value, allowed in (("score", score, Score), ("within", within, Within)):
        if value not in get_args(allowed):
            raise UserError(f"{name} = {value!r}: it is {' or '.join(get_args(allowed))}")
