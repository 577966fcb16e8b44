"""When not to answer: a threshold of certainty above which errors are rare enough, with a guarantee.

Answered are records whose most probable class has p > t. Of m labelled records above t that no training saw, w are
predicted wrong. For an error rate r among answered records, w follows Bin(m, r), and the hypothesis "r > risk" is
refuted at level e where P(Bin(m, risk) <= w) <= e; that is where the upper bound of Clopper and Pearson (1934) at
confidence 1 - e is at most `risk`.

Thresholds tried are such that about the most certain 10, 20, ... 100 % of n records are above: t is the value of the
next record in order of certainty, and given t the records above it are independent of each other and of it. Those of
the G thresholds that could pass at all with no error are tested at e = (1 - confidence) / G each. The union bound then
gives, for whichever passes (Geifman and El-Yaniv 2017; Angelopoulos et al. 2021, Learn then Test):

    with probability `confidence` over the n records, new records of the same kind that are answered
    are predicted wrong at a rate of at most `risk`

The lowest threshold that passes is taken; where none does, nothing is answered.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from fedbnn.base.errors import UserError

LEVELS = 10  # shares of the records that are tried: 10 %, 20 %, ...
CONFIDENCE = 0.9


@dataclass(frozen=True)
class Abstention:
    """The threshold, and what it was chosen by.

    Attributes:
        threshold: of the largest class probability; answered is what is above it. Infinite: nothing is.
        answered: how many of the n records are above it.
        wrong: how many of these are predicted wrong.
        bound: the upper bound of the error rate among answered records; 1 where there is none.

    """

    risk: float
    confidence: float
    threshold: float
    records: int
    answered: int
    wrong: int
    bound: float


def upper_bound(wrong: int, records: int, level: float) -> float:
    """What a rate exceeds with probability at most `level`, given its count (Clopper and Pearson 1934)."""
    return 1.0 if wrong >= records else float(betaincinv(wrong + 1, records - wrong, 1 - level))


def choose(
    certainty: ArrayLike, right: ArrayLike, risk: float, confidence: float = CONFIDENCE, levels: int = LEVELS
) -> Abstention:
    """The lowest threshold whose error rate is at most `risk`, from labelled records (none is allowed).

    `certainty` is each record's largest class probability, `right` whether that class is its own.
    """
    check_risk(risk, confidence)
    sure, hit = np.asarray(certainty, dtype=np.float64), np.asarray(right, dtype=np.bool_)
    n = len(sure)
    ordered = np.sort(sure)[::-1]
    ranks, level = _tested(n, risk, 1 - confidence, levels)
    for rank in sorted(ranks, reverse=True):
        threshold = float(ordered[rank]) if rank < n else -math.inf
        above = sure > threshold
        answered, wrong = int(above.sum()), int((above & ~hit).sum())
        if answered and (bound := upper_bound(wrong, answered, level)) <= risk:
            return Abstention(risk, confidence, threshold, n, answered, wrong, bound)
    return Abstention(risk, confidence, math.inf, n, 0, 0, 1.0)


def _tested(n: int, risk: float, level: float, levels: int) -> tuple[list[int], float]:
    """How many of the most certain records are answered at each threshold tried, and the level of each test.

    Only n decides it: as many of the largest as could pass without any error, each at its part of the level.
    """
    ranks = sorted({math.ceil(n * step / levels) for step in range(1, levels + 1)} - {0}, reverse=True)
    for count in range(len(ranks), 0, -1):
        if upper_bound(0, ranks[count - 1], level / count) <= risk:
            return ranks[:count], level / count
    return [], level


def check_risk(risk: float, confidence: float = CONFIDENCE) -> None:
    """Raise a UserError unless errors can be so rare, with such a confidence."""
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not (isinstance(value, int | float) and 0 < value < 1):
            raise UserError(f"{name} = {value}: it is above 0 and below 1")
