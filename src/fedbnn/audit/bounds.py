"""A lower bound on the mu of a mechanism, from what it sent: how well an adversary tells two data sets apart.

A mechanism is mu-GDP if nobody can tell neighbouring data sets apart better than N(0, 1) and N(mu, 1) can be told
apart (Dong, Roth, Su 2022). A test that is wrong with probability alpha without a record and beta with it thus proves

    mu >= Phi^-1(1 - alpha) - Phi^-1(beta)                                                                  (1)

In each trial a fair coin decides whether the record is there, and the adversary guesses. By (1) alpha + beta is at
least 2 Phi(-mu / 2), so a guess is right with probability 1 - (alpha + beta) / 2 <= Phi(mu / 2), and of n independent
guesses the number of right ones is binomial. With p Clopper and Pearson's lower limit for its probability,

    mu >= 2 Phi^-1(p)                                                                                       (2)

One limit on all trials costs less than one for each of two errors: for the same bound, (1) needs more than twice the
trials. Only total variation is asked for in (2). What is not Gaussian but has a total variation TV (the subsampled
releases of DP-SGD, see `claims`) is held against (2) as well, by a "mu" of 2 Phi^-1((1 + TV) / 2): right guesses have a
probability of at most (1 + TV) / 2. Events that are rare, but happen in one world only, are seen by (1) alone, with
limits for alpha and beta at one threshold. So a quarter of the risk of being wrong goes to (1), the rest to (2), and
the larger bound is taken. An audit at one (epsilon, delta) would have to count events that hardly ever happen, and
misses noise of half the size (Nasr et al. 2023).

The trials that this needs: with n guesses the bound falls short of the truth by 2 z sqrt(p (1 - p) / n) / phi(mu / 2)
in the middle, z = 3.2 at confidence 0.999, and a third of that is its standard deviation. At epsilon 3 (mu = 0.719),
15,000 trials, of which 12,000 are counted, prove 0.89 mu in the middle and 0.82 mu in 98 of 100 audits; noise of 0.8
times the size (mu = 0.899) is refuted from 10,000 trials on, in 99 of 100 audits.

Many canaries in one release (Steinke, Nasr, Jagielski 2023) would need few releases. What is proved for them counts
right guesses against e^epsilon / (1 + e^epsilon), 0.95 at epsilon 3, where a Gaussian allows 0.64: far from tight here,
while trials cost milliseconds.

What one trial shows is a row of numbers, made one by Fisher's linear discriminant. The first third of the trials, 3,000
at most, chooses it and the thresholds, and the others are counted, so nothing is chosen by looking at what is counted.
A discriminant of d numbers that so many chose misses a share of about d / 750 of mu = 0.719, a hundredth where d is 7:
less than would be lost were more of them not counted.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEAST_TRIALS = 12
_PILOT = 3000  # trials that choose the test, at most
_RARE = 0.25  # of the risk of being wrong, for what happens rarely
_QUANTILES = np.linspace(0.001, 0.999, 200)  # among which the threshold for that is chosen
_RIDGE = 1e-6  # of the mean variance: what has no variance at all counts, and does not divide by zero
_HUGE = 1e9  # what is not finite counts as this


def upper_limit(events: int, trials: int, level: float) -> float:
    """Clopper and Pearson: the probability of an event that happened so often is above it with probability `level`."""
    return 1.0 if events == trials else float(betaincinv(events + 1, trials - events, 1 - level))


def lower_limit(events: int, trials: int, level: float) -> float:
    """The same from below."""
    return 1 - upper_limit(trials - events, trials, level)


def discriminant(without: Floats, present: Floats) -> Floats:
    """Fisher's: weights w that maximise (w difference of means)^2 / (w pooled covariance w)."""
    apart: Floats = present.mean(0) - without.mean(0)
    centred = np.concatenate([without - without.mean(0), present - present.mean(0)])
    spread = np.sqrt((centred**2).mean(0))
    noisy = spread > 0
    # Numbers of different kinds: in units of their own spread. What never varies has the smallest of them.
    unit = np.where(noisy, spread, spread[noisy].min() if noisy.any() else 1.0)
    scaled = centred / unit
    covariance = scaled.T @ scaled / len(scaled) + _RIDGE * np.eye(len(apart))
    weights: Floats = np.linalg.solve(covariance, apart / unit) / unit
    return weights


def mu_lower_bound(shown: Floats, present: Flags, confidence: float, *, gaussian: bool = True) -> float:
    """A bound that is above the true mu with probability 1 - `confidence` at most; never below 0.

    Each row of `shown` is from one independent trial, and `present` says whether the record was there, which a fair
    coin decided. Without `gaussian` the bound is (2) alone.
    """
    if len(shown) < LEAST_TRIALS:
        raise ValueError(f"there are {len(shown)} trials: at least {LEAST_TRIALS} are needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: must be between 0 and 1, both excluded")
    shown = np.nan_to_num(shown, nan=_HUGE, posinf=_HUGE, neginf=-_HUGE)
    pilot = min(len(shown) // 3, _PILOT)
    tried, there = shown[:pilot], present[:pilot]
    if there.all() or not there.any():  # nothing to learn a test from
        return 0.0
    weights = discriminant(tried[~there], tried[there])
    scores, truth = shown[pilot:] @ weights, present[pilot:]
    middle = float(((tried[there] @ weights).mean() + (tried[~there] @ weights).mean()) / 2)
    risk = 1 - confidence
    right = int(((scores > middle) == truth).sum())
    bound = 2 * float(ndtri(lower_limit(right, len(scores), risk * (1 - _RARE) if gaussian else risk)))
    if gaussian:
        threshold = _best_threshold(tried @ weights, there, risk * _RARE)
        bound = max(bound, _bound_at(threshold, scores, truth, risk * _RARE))
    return max(0.0, bound)


def _best_threshold(scores: Floats, present: Flags, risk: float) -> float:
    candidates = np.quantile(scores, _QUANTILES)
    return float(max(candidates, key=lambda threshold: _bound_at(threshold, scores, present, risk)))


def _bound_at(threshold: float, scores: Floats, present: Flags, risk: float) -> float:
    """(1), with limits for both errors that hold together."""
    above, count = scores > threshold, int(present.sum())
    if count in (0, len(present)):
        return 0.0
    alpha = upper_limit(int((above & ~present).sum()), len(present) - count, risk / 2)
    beta = upper_limit(int((~above & present).sum()), count, risk / 2)
    return float(ndtri(1 - alpha) - ndtri(beta)) if alpha < 1 and beta < 1 else 0.0
