"""A lower bound on the mu of a mechanism, from what it sent: how well an adversary tells two data sets apart.

A mechanism is mu-GDP if nobody can tell neighbouring data sets apart better than N(0, 1) and N(mu, 1) can be told
apart (Dong, Roth, Su 2022). A test that is wrong with probability alpha without a record and beta with it thus proves

    mu >= Phi^-1(1 - alpha) - Phi^-1(beta)

Errors are counted in trials, so Clopper and Pearson's upper limits stand for alpha and beta (Nasr et al. 2023). The
errors may be of any size there: an audit at one (epsilon, delta) has to count events that hardly ever happen, and
misses noise of half the size.

What one trial shows is a row of numbers, made one by Fisher's linear discriminant. A third of the trials choose the
discriminant and the thresholds and the others are counted, so nothing is chosen by looking at what is counted.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

Floats = NDArray[np.float64]

LEAST_TRIALS = 4
_THRESHOLDS = (0.25, 0.5, 0.75)  # on the way from the median of one world to that of the other
_RIDGE = 1e-6  # of the mean variance: what has no variance at all counts, and does not divide by zero


def upper_limit(events: int, trials: int, level: float) -> float:
    """Clopper and Pearson: the probability of an event that happened so often is above it with probability `level`."""
    return 1.0 if events == trials else float(betaincinv(events + 1, trials - events, 1 - level))


def discriminant(without: Floats, present: Floats) -> Floats:
    """Fisher's: weights w that maximise (w difference of means)^2 / (w pooled covariance w)."""
    apart: Floats = present.mean(0) - without.mean(0)
    centred = np.concatenate([without - without.mean(0), present - present.mean(0)])
    covariance = centred.T @ centred / len(centred)
    variance = covariance.trace() / len(apart)
    if variance == 0:  # no noise at all
        return apart
    weights: Floats = np.linalg.solve(covariance / variance + _RIDGE * np.eye(len(apart)), apart)
    return weights


def mu_lower_bound(without: Floats, present: Floats, confidence: float) -> float:
    """A bound that is above the true mu with probability 1 - `confidence` at most.

    Each row is what one independent trial showed, without the record and with it present.
    """
    if min(len(without), len(present)) < LEAST_TRIALS:
        raise ValueError(f"there are {len(without)} and {len(present)} trials: at least {LEAST_TRIALS} are needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: must be between 0 and 1, both excluded")
    chosen_by = [rows[: len(rows) // 3] for rows in (without, present)]
    weights = discriminant(*chosen_by)
    low, high = (float(np.median(rows @ weights)) for rows in chosen_by)
    scores, other_scores = (rows[len(rows) // 3 :] @ weights for rows in (without, present))
    level = (1 - confidence) / (2 * len(_THRESHOLDS))  # two limits at each threshold, and all of them hold at once
    bounds = [0.0]
    for part in _THRESHOLDS:
        threshold = low + part * (high - low)
        alpha = upper_limit(int((scores > threshold).sum()), len(scores), level)
        beta = upper_limit(int((other_scores <= threshold).sum()), len(other_scores), level)
        if alpha < 1 and beta < 1:
            bounds.append(float(ndtri(1 - alpha) - ndtri(beta)))
    return max(bounds)
