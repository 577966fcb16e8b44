"""How well a score tells two groups apart, such as familiar and out-of-distribution inputs."""

import numpy as np
from numpy.typing import ArrayLike


def auroc(scores_negative: ArrayLike, scores_positive: ArrayLike) -> float:
    """Area under the ROC curve: P(s+ > s-) + P(s+ = s-) / 2 over all pairs (Mann and Whitney 1947).

    For out-of-distribution detection the score is an uncertainty, the negatives are familiar inputs and
    the positives are foreign ones: 1 is perfect, 0.5 is chance.
    """
    negative = np.sort(np.asarray(scores_negative, dtype=np.float64).ravel())
    positive = np.asarray(scores_positive, dtype=np.float64).ravel()
    if not negative.size or not positive.size:
        raise ValueError(
            f"auroc needs scores of both groups, got {negative.size} negative and {positive.size} positive"
        )
    if np.isnan(negative).any() or np.isnan(positive).any():
        raise ValueError("scores hold values that are not numbers")
    below = np.searchsorted(negative, positive, side="left")
    not_above = np.searchsorted(negative, positive, side="right")
    return float(np.mean(below + not_above) / (2 * negative.size))
