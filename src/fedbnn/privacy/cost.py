"""What releases cost, in a form that adds up: Gaussian ones, ones over samples of the records, and both together.

    Cost = (mu, sampled, gap)

mu         of releases that see all records: mu^2 = sum (Delta / sigma)^2, which is exact (see `accountant`)
sampled    (noise multiplier, sampling rate, steps) of releases over Poisson samples
gap        how far what is drawn may be from Gaussian noise that is rounded to the grid: no outcome is more than
           exp(gap) times as likely, or as unlikely, as it is accounted for

Without samples, (epsilon, delta) follow from the closed form. With samples, the privacy loss distributions of all
parts are composed numerically (Doroshenko et al. 2022), the Gaussian one included; that is an upper bound, and never
worse than counting the samples as all records.

The gap of discrete Gaussian noise. With s its sigma in units of the grid, phi the density of N(0, s^2) and x a whole
number, rounded noise has the probability R(x) = integral of phi over x +- 1/2, the discrete Gaussian
phi(x) / sum_y phi(y). By Poisson's formula the sum is 1 up to 3 exp(-2 pi^2 s^2). And

    R(x) / phi(x) = integral of exp(-u^2 / (2 s^2)) cosh(x u / s^2) over |u| <= 1/2,

which is at least exp(-1 / (8 s^2)) and, as cosh(t) <= exp(t^2 / 2), at most exp(x^2 / (8 s^4)). So within 50 sigma the
two differ by a factor of at most exp(50^2 / (8 s^2)); beyond that lies less than 1e-500 of either, which no double can
hold. Factors multiply: the gaps of all numbers of all releases add up, also in the mixtures that sampling makes. If P
and Q are the two worlds as drawn, P' and Q' as accounted for, P(S) - e^eps Q(S) <= e^gap (P'(S) - e^(eps - 2 gap)
Q'(S)) for every event S, so (eps', delta') of the latter are (eps' + 2 gap, e^gap delta') of the former.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fedbnn.base.errors import UserError
from fedbnn.privacy.accountant import gaussian_epsilon, gaussian_mu, sampled_epsilon, total_variation

_WIDE = 50.0  # sigma; see above
_HUGE = 1e100  # a mu beyond it costs no less, and squares of it can still be worked out
_LEAST_SIGMA = 16.0  # in units of the grid: below it the terms that were left out above might show


class Sampled(NamedTuple):
    """Releases with noise of `noise` times the sensitivity, each over a sample that a record is in with `rate`."""

    noise: float
    rate: float
    steps: int


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta): the most that some releases may cost together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise UserError(f"epsilon is {self.epsilon}: must be a finite number above 0")
        if not 0 < self.delta < 1:
            raise UserError(f"delta is {self.delta}: must be between 0 and 1, both excluded")

    def to_dict(self) -> dict[str, float]:
        return {"epsilon": float(self.epsilon), "delta": float(self.delta)}


@dataclass(frozen=True)
class Cost:
    """Of some releases together; the sum of two is the cost of both."""

    mu: float = 0.0
    sampled: tuple[Sampled, ...] = ()
    gap: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.mu < math.inf and 0 <= self.gap < math.inf):
            raise ValueError(f"mu is {self.mu} and gap {self.gap}: must be finite numbers, at least 0")
        for noise, rate, steps in self.sampled:
            if not (0 < noise < math.inf and 0 < rate <= 1 and steps >= 1):
                raise ValueError(f"{steps} steps with noise {noise} at rate {rate} cannot be")

    def __add__(self, other: "Cost") -> "Cost":
        return total((self, other))

    def epsilon(self, delta: float) -> float:
        """At this delta, rounded up; infinity where nothing is guaranteed."""
        within = delta * math.exp(-self.gap)
        if within == 0:
            return math.inf
        if self.sampled:
            return sampled_epsilon(min(self.mu, _HUGE), self.sampled, within) + 2 * self.gap
        return gaussian_epsilon(min(self.mu, _HUGE), within) + 2 * self.gap

    def best_guess(self) -> float:
        """The most often that anybody is right who guesses whether a record is there, if both are equally likely.

        That is (1 + TV) / 2 with TV the total variation between the two worlds: Phi(mu / 2) without samples. Each world
        as drawn is within (e^gap - 1) / 2 of the one that is accounted for.
        """
        apart = total_variation(min(self.mu, _HUGE), self.sampled) + math.expm1(min(self.gap, 1.0))
        return (1 + min(1.0, apart)) / 2

    def fits(self, budget: Budget) -> bool:
        """Whether it is within the budget."""
        if self.sampled:
            return self.epsilon(budget.delta) <= budget.epsilon
        epsilon, delta = budget.epsilon - 2 * self.gap, budget.delta * math.exp(-self.gap)
        return epsilon > 0 and delta > 0 and self.mu <= gaussian_mu(epsilon, delta)


def total(costs: Iterable[Cost]) -> Cost:
    """Of all these together."""
    squares, gap = [], 0.0
    steps: dict[tuple[float, float], int] = {}
    for cost in costs:
        squares.append(cost.mu)
        gap += cost.gap
        for noise, rate, count in cost.sampled:
            steps[noise, rate] = steps.get((noise, rate), 0) + count
    sampled = tuple(Sampled(noise, rate, count) for (noise, rate), count in sorted(steps.items()))
    most = sys.float_info.max  # of what no double holds, it is known to be no less
    return Cost(min(math.hypot(*squares), most), sampled, min(gap, most))


def discrete_gap(sigma: float, numbers: int) -> float:
    """Of `numbers` draws of the discrete Gaussian of this sigma, in units of the grid."""
    if sigma < _LEAST_SIGMA:
        raise ValueError(
            f"sigma is {sigma} units of the grid: below {_LEAST_SIGMA:g} it cannot be accounted as Gaussian"
        )
    return numbers * _WIDE**2 / (8 * sigma**2)
