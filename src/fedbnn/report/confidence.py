"""One sentence where a model claims more than it keeps.

Predictions of calibrated probabilities are right as often as they claim: accuracy is below mean confidence by more than
t with probability at most exp(-2 n t^2) for n independent ones (Hoeffding 1963). A gap counts as over-confidence where
it is above LEAST, which is worth a reader's while, and above t for one chance in twenty, which luck does not explain.
"""

import math

from fedbnn.federation.metrics import ReliabilityBins
from fedbnn.report.figures import share, show

LEAST = 0.05
CHANCE = 0.05


def bound(predictions: int) -> float:
    """The greatest gap of mean confidence and accuracy that is not called over-confidence."""
    return max(LEAST, math.sqrt(math.log(1 / CHANCE) / (2 * predictions)))


def overconfidence(bins: ReliabilityBins, who: str) -> str:
    """The sentence on this model, or nothing."""
    n = int(bins.count.sum())
    if n == 0:
        return ""
    confidence, accuracy = float(bins.confidence_sum.sum()) / n, float(bins.correct_sum.sum()) / n
    if not confidence - accuracy > bound(n):
        return ""
    return (
        f"{who} is over-confident: over its {n:,} predictions it claims {show(confidence, share)} on average and is "
        f"right on {show(accuracy, share)}, more than {show(bound(n), share)} less; its probabilities promise too much."
    )
