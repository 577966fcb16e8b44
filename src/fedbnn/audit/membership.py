"""Was this record among a client's? The likelihood ratio attack on what the client sent (LiRA, Carlini et al. 2022).

A run trains a client on a random half of some candidate records: a fair coin for each. The attacker makes such runs
himself (shadows), where he knows the coins, and is then shown what a client sent in others (targets). From an upload he
reads one number t for each record. In the shadows it is about normal, with one mean and variance where the record was
in and others where it was out, and of a target he asks which of both explains it better:

    score = log N(t; mean_in, var_in) - log N(t; mean_out, var_out)

Where t comes from is a view of the upload:

    Own      a number that somebody who knows the mechanism works out for the record, e.g. the sum along the record's
             own contribution. Nothing is fitted, so it is best where noise leaves little to learn from.
    Whole    what a ridge regression of the coins on the whole upload says of the record, its strength chosen by leaving
             one out. It also tells the part of other records from the record's own: best where there is no noise.

Runs are divided into folds. The runs of a fold are the targets of a fit to all others, which also choose the view, by
the same attack among themselves. So no score comes from a run that had a part in how it is made.

A mechanism that is mu-GDP bounds every attack, also one that knows all other records (Dong, Roth, Su 2022):

    area under the ROC curve <= Phi(mu / sqrt 2),    true positives at a rate a of false ones <= Phi(Phi^-1(a) + mu)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

Floats = NDArray[np.float64]
Coins = NDArray[np.bool_]  # runs x records: which were in

RATES = (0.01, 0.001)  # of false positives, at which true ones are counted
_FOLDS = 4
_STRENGTHS = 10.0 ** np.arange(-4, 4, 0.5)  # of the ridge, in parts of the uploads' variance
_FAINT = 1e-12  # part of a variance that counts as none


class View(Protocol):
    """How numbers about records are read from uploads."""

    def read(self, coins: Coins, shadows: Coins) -> Floats:
        """One number for each run and record, by a fit to the shadows (True in this row of runs) alone."""

    def among(self, runs: Coins) -> Self:
        """The same of some runs only."""


@dataclass(frozen=True)
class Own:
    """A number for each run and record.

    `others` is the part of it that records beside this one had in the run, up to a factor; for an attacker who knows
    them all.
    """

    values: Floats
    others: Floats | None = None

    def read(self, coins: Coins, shadows: Coins) -> Floats:
        if self.others is None:
            return self.values
        known, seen = self.others[shadows], self.values[shadows]
        known, seen = known - known.mean(0), seen - seen.mean(0)
        factor = (known * seen).sum() / max((known * known).sum(), np.finfo(np.float64).tiny)
        read: Floats = self.values - factor * self.others
        return read

    def among(self, runs: Coins) -> Self:
        return replace(self, values=self.values[runs], others=None if self.others is None else self.others[runs])


@dataclass(frozen=True)
class Whole:
    """All numbers of an upload, runs x numbers."""

    values: Floats

    def read(self, coins: Coins, shadows: Coins) -> Floats:
        """Ridge regression; of a shadow, what the others say of it, as that is what a target will look like."""
        known = coins[shadows].astype(np.float64)
        centred = self.values - self.values[shadows].mean(0)
        inner, runs = centred @ centred[shadows].T, len(known)
        values, vectors = np.linalg.eigh(inner[shadows])
        values = values.clip(0)
        apart = known - known.mean(0)
        turned = vectors.T @ apart
        best, read = np.inf, np.zeros(coins.shape)
        for strength in _STRENGTHS * max(values.mean(), np.finfo(np.float64).tiny):
            left_in = vectors @ ((values / (values + strength))[:, None] * turned)
            leverage = (vectors**2 @ (values / (values + strength)) + 1 / runs)[:, None]
            left_out = (left_in - leverage * apart) / (1 - leverage)
            error = float(((apart - left_out) ** 2).mean())
            if error < best:
                best = error
                read[:] = inner @ (vectors @ (turned / (values + strength)[:, None]))
                read[shadows] = left_out
        return read

    def among(self, runs: Coins) -> Self:
        return replace(self, values=self.values[runs])


def log_ratios(read: Floats, coins: Coins, shadows: Coins) -> Floats:
    """The score of every record in the runs that are no shadows; zero where fewer than two shadows show a world."""
    scores = np.zeros((int((~shadows).sum()), coins.shape[1]))
    floor = _FAINT * max(float(read[shadows].var()), np.finfo(np.float64).tiny)
    for record, column in enumerate(read.T):
        inside = shadows & coins[:, record]
        outside = shadows & ~coins[:, record]
        if min(inside.sum(), outside.sum()) < 2:
            continue
        scores[:, record] = _log_density(column, inside, shadows, floor) - _log_density(column, outside, shadows, floor)
    return scores


def _log_density(column: Floats, world: Coins, shadows: Coins, floor: float) -> Floats:
    variance = max(float(column[world].var(ddof=1)), floor)
    density: Floats = -((column[~shadows] - column[world].mean()) ** 2) / (2 * variance) - np.log(variance) / 2
    return density


@dataclass(frozen=True)
class Attacked:
    """Scores, runs x records, and the view that the shadows of each fold chose."""

    scores: Floats
    chosen: tuple[str, ...]


def attack(views: Mapping[str, View], coins: Coins, folds: int = _FOLDS) -> Attacked:
    """Score every run by a fit to the runs of the other folds."""
    runs = len(coins)
    if runs < 2 * folds:
        raise ValueError(f"there are {runs} runs: {folds} folds need at least {2 * folds}")
    scores, chosen = np.zeros(coins.shape), []
    for fold in range(folds):
        shadows = np.arange(runs) % folds != fold
        best = _best(views, coins, shadows, folds)
        scores[~shadows] = log_ratios(views[best].read(coins, shadows), coins, shadows)
        chosen.append(best)
    return Attacked(scores, tuple(chosen))


def _best(views: Mapping[str, View], coins: Coins, shadows: Coins, folds: int) -> str:
    """The view that tells most among the shadows, some of which play targets."""
    known = coins[shadows]
    fitted = np.arange(len(known)) % folds != 0

    def told(name: str) -> float:
        read = views[name].among(shadows).read(known, fitted)
        return auc(log_ratios(read, known, fitted), known[~fitted])

    return max(views, key=told)


def auc(scores: Floats, coins: Coins) -> float:
    """How often a record that was in has a higher score than one that was out; ties count half."""
    inside = int(coins.sum())
    outside = coins.size - inside
    if not inside or not outside:
        return 0.5
    above = rankdata(scores.ravel())[coins.ravel()].sum() - inside * (inside + 1) / 2
    return float(above / (inside * outside))


def true_positives(scores: Floats, coins: Coins, rate: float) -> float:
    """Share of records found at the lowest threshold that at most this share of the others exceeds."""
    outside = np.sort(scores[~coins])[::-1]
    if not len(outside) or not coins.any():
        return rate
    return float((scores[coins] > outside[min(int(rate * len(outside)), len(outside) - 1)]).mean())


@dataclass(frozen=True)
class Figure:
    """A measured number, and where it lies with 95 percent confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Leak:
    """What an attack found out: the area under the ROC curve, and true positives at `RATES`."""

    auc: Figure
    tpr: tuple[Figure, ...]


def leak(scores: Floats, coins: Coins, draws: int = 200, seed: int = 0) -> Leak:
    """Measures of an attack; limits by drawing runs again, as records of one run share its noise."""
    rng = np.random.default_rng(seed)

    def measured(rows: NDArray[np.int64]) -> list[float]:
        one, known = scores[rows], coins[rows]
        return [auc(one, known), *(true_positives(one, known, rate) for rate in RATES)]

    again = [measured(rng.integers(len(coins), size=len(coins))) for _ in range(draws)]
    low, high = np.quantile(again, [0.025, 0.975], axis=0)
    values = measured(np.arange(len(coins)))
    first, *others = [Figure(v, float(a), float(b)) for v, a, b in zip(values, low, high, strict=True)]
    return Leak(first, tuple(others))


def auc_bound(mu: float) -> float:
    """The largest area under the ROC curve that any attack on a mu-GDP mechanism can have."""
    return float(ndtr(mu / np.sqrt(2)))


def tpr_bound(mu: float, rate: float) -> float:
    """The largest share of true positives at this rate of false ones."""
    return float(ndtr(ndtri(rate) + mu))
