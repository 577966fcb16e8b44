"""What a series of Gaussian releases costs, in (epsilon, delta).

A release adds N(0, (z Delta)^2 I) to a value that one record moves by at most Delta in Euclidean norm; z is the noise
multiplier. Two data sets are neighbours if one has one record more than the other (add or remove one record), so
Delta of a sum of clipped terms is the clip, and replacing a record counts as two changes.

Every release sees all records: k releases together are one Gaussian with mu = sqrt(k) / z, and exactly

    delta(epsilon) = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)      (Balle and Wang 2018)

Every release sees each record with probability q, drawn afresh and independently (Poisson sampling, as in DP-SGD):
the privacy loss distribution of one step is composed numerically (Koskela et al. 2020; Doroshenko et al. 2022), which
gives an upper bound that is tight up to its grid. The same neighbours: with and without one record.

A record held by g clients (`multiplicity`) is in g times as many releases. Numerical results are rounded to the safe
side: epsilon and noise up, mu down.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from scipy.special import log_ndtr

from fedbnn.base.errors import UserError

_ROUNDING = 1e-9  # relative; far above the error of log_ndtr, far below anything anybody prints
_NOISE_STEP = 5e-4  # relative; how close to the smallest noise the search for subsampled releases comes
_GRID = 0.05  # of the privacy loss, in standard deviations of one step: costs epsilon about 0.05 percent
_COARSEST_GRID = 5e-3
_MOST_CELLS = 40_000  # of the grid of one step; about half a second
_LEAST_NOISE = 0.05  # noise multiplier; below it sampling is not counted in favour of privacy


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of everything released so far."""

    epsilon: float
    delta: float
    unit: Literal["record", "client"]  # what one may add or remove
    mechanism: str
    joined: float | None = None  # the epsilon as long as only sums over clients can be seen, where that is another one


def _require(field: str, value: float, holds: bool, rule: str) -> None:
    if not (holds and math.isfinite(value)):
        raise ValueError(f"{field} is {value}: must be {rule}")


def _require_epsilon(epsilon: float) -> None:
    _require("epsilon", epsilon, epsilon > 0, "a finite number above 0")


def _require_delta(delta: float) -> None:
    _require("delta", delta, 0 < delta < 1, "between 0 and 1, both excluded")


def _require_count(field: str, count: int, least: int) -> None:
    whole = isinstance(count, int) and not isinstance(count, bool)
    _require(field, count, whole and count >= least, f"a whole number, at least {least}")


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta at this epsilon of Gaussian releases with (sum of) mu^2 = sum (Delta / sigma)^2."""
    _require("mu", mu, mu >= 0, "a finite number, at least 0")
    _require_epsilon(epsilon)
    return _delta(mu, epsilon)


def _delta(mu: float, epsilon: float) -> float:
    if mu == 0:
        return 0.0
    with_record = float(log_ndtr(-epsilon / mu + mu / 2))
    without = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))  # in logarithms, where e^epsilon cannot overflow
    return max(0.0, -math.exp(with_record) * math.expm1(min(0.0, without - with_record)))


def _boundary(outside: float, inside: float, allowed: Callable[[float], bool]) -> float:
    """The last point towards `outside` that is allowed, by halving the interval down to neighbouring floats."""
    while True:
        middle = (outside + inside) / 2
        if middle in (outside, inside):
            return inside
        if allowed(middle):
            inside = middle
        else:
            outside = middle


def gaussian_epsilon(mu: float, delta: float, multiplicity: int = 1) -> float:
    """The smallest epsilon at this delta, rounded up; a record held by g clients has sqrt(g) times the mu."""
    _require("mu", mu, mu >= 0, "a finite number, at least 0")
    _require_delta(delta)
    _require_count("multiplicity", multiplicity, 1)
    mu *= math.sqrt(multiplicity)
    if _delta(mu, 0.0) <= delta:
        return 0.0
    enough = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # from delta <= Phi(-epsilon / mu + mu / 2)
    return _boundary(0.0, enough, lambda epsilon: _delta(mu, epsilon) <= delta) * (1 + _ROUNDING)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu that (epsilon, delta) allows, rounded down."""
    _require_epsilon(epsilon)
    _require_delta(delta)
    too_much = 1.0
    while _delta(too_much, epsilon) <= delta:
        too_much *= 2
    return _boundary(too_much, 0.0, lambda mu: _delta(mu, epsilon) <= delta) * (1 - 3 * _ROUNDING)


def composed_mu(noise_multiplier: float, releases: int, multiplicity: int = 1) -> float:
    """The mu of `releases` equal releases together."""
    _require("noise_multiplier", noise_multiplier, noise_multiplier > 0, "a finite number above 0")
    _require_count("releases", releases, 0)
    _require_count("multiplicity", multiplicity, 1)
    return math.sqrt(releases * multiplicity) / noise_multiplier


def noise_multiplier(epsilon: float, delta: float, releases: int = 1, multiplicity: int = 1) -> float:
    """The sigma / Delta of each of `releases` equal releases that together cost (epsilon, delta), rounded up."""
    _require_count("releases", releases, 1)
    _require_count("multiplicity", multiplicity, 1)
    return math.sqrt(releases * multiplicity) / gaussian_mu(epsilon, delta) * (1 + _ROUNDING / 10)


def subsampled_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, multiplicity: int = 1
) -> float:
    """An upper bound on epsilon of `steps` releases, each over a Poisson sample of the records.

    g clients that hold the same record sample it independently: g times as many steps. Below delta = 1e-12 the
    rounding of the numerical composition is no longer small.
    """
    _require("noise_multiplier", noise_multiplier, noise_multiplier > 0, "a finite number above 0")
    _require_rate(sampling_rate)
    _require_count("steps", steps, 0)
    _require_delta(delta)
    _require_count("multiplicity", multiplicity, 1)
    if steps == 0:
        return 0.0
    if sampling_rate == 1:
        return gaussian_epsilon(composed_mu(noise_multiplier, steps, multiplicity), delta)
    return _poisson_epsilon(noise_multiplier, sampling_rate, steps * multiplicity, delta)


def subsampled_noise(epsilon: float, sampling_rate: float, steps: int, delta: float, multiplicity: int = 1) -> float:
    """The smallest noise multiplier with which `steps` releases cost at most epsilon.

    Up to 0.05 percent above it; never below 0.05 unless the releases are affordable without counting the sampling.
    """
    _require_epsilon(epsilon)
    _require_rate(sampling_rate)
    _require_count("steps", steps, 1)
    _require_delta(delta)
    _require_count("multiplicity", multiplicity, 1)
    if sampling_rate == 1:
        return noise_multiplier(epsilon, delta, steps, multiplicity)
    return _poisson_noise(epsilon, sampling_rate, steps * multiplicity, delta)


def _require_rate(sampling_rate: float) -> None:
    _require("sampling_rate", sampling_rate, 0 < sampling_rate <= 1, "above 0 and at most 1")


def _loss_distributions() -> Any:
    try:
        return importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    except ImportError as error:
        raise UserError(
            "privacy accounting of sampled batches needs the extra: pip install 'fedbnn[privacy]'"
        ) from error


def _grid(noise: float, rate: float) -> float:
    """The cell width for the privacy loss of one step.

    Rounding adds up to width^2 / 4 to the variance of the loss, so the width must be small against its standard
    deviation (about rate * sqrt(e^(1 / noise^2) - 1)); the number of cells is bounded for the sake of time.
    """
    square = min(1 / noise**2, 50.0)
    return max(min(_GRID * rate * math.sqrt(math.expm1(square)), _COARSEST_GRID), _coarsest(noise, rate))


def _coarsest(noise: float, rate: float) -> float:
    """The cell width with which one step has as many cells as it may."""
    largest = 0.5 / noise**2 + 10 / noise  # of the loss without sampling, ten standard deviations out
    return max(largest + math.log(rate), math.log1p(rate * math.expm1(min(largest, 50.0)))) / _MOST_CELLS


@lru_cache(maxsize=1024)
def _poisson_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    unsampled = gaussian_epsilon(composed_mu(noise, steps), delta)  # sampling only makes it cheaper
    if noise < _LEAST_NOISE:
        return unsampled
    one = _loss_distributions().from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        pessimistic_estimate=True,
        use_connect_dots=True,
        value_discretization_interval=_grid(noise, rate),
    )
    all_steps = one.self_compose(steps, tail_mass_truncation=min(1e-15, 1e-6 * delta))
    return min(unsampled, float(all_steps.get_epsilon_for_delta(delta)) * (1 + _ROUNDING))


def sampled_epsilon(mu: float, sampled: Sequence[tuple[float, float, int]], delta: float) -> float:
    """An upper bound on epsilon of Gaussian releases of this mu together with (noise, rate, steps) over samples."""
    _require("mu", mu, mu >= 0, "a finite number, at least 0")
    _require_delta(delta)
    if mu == 0 and len(sampled) == 1:
        return subsampled_epsilon(*sampled[0], delta)
    return _composed_epsilon(mu, tuple(sampled), delta)


@lru_cache(maxsize=1024)
def _composed_epsilon(mu: float, sampled: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """The parts on one grid, the finest that any of them needs and none has too many cells on."""
    unsampled = gaussian_epsilon(math.hypot(mu, *(math.sqrt(steps) / noise for noise, _, steps in sampled)), delta)
    together = _composed(mu, sampled, min(1e-15, 1e-6 * delta))
    if together is None:
        return unsampled
    return min(unsampled, float(together.get_epsilon_for_delta(delta)) * (1 + _ROUNDING))


def _composed(mu: float, sampled: Sequence[tuple[float, float, int]], truncated: float) -> Any:
    """The privacy loss distribution of all parts; None where sampling is not counted in favour of privacy."""
    parts = [*sampled, *([(1 / mu, 1.0, 1)] if mu > 0 else [])]
    if any(noise < _LEAST_NOISE for noise, _, _ in parts):
        return None
    width = max(min(_grid(noise, rate) for noise, rate, _ in parts), *(_coarsest(n, r) for n, r, _ in parts))
    losses = _loss_distributions()
    together: Any = None
    for noise, rate, steps in parts:
        one = losses.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            pessimistic_estimate=True,
            use_connect_dots=True,
            value_discretization_interval=width,
        ).self_compose(steps, tail_mass_truncation=truncated)
        together = one if together is None else together.compose(one, tail_mass_truncation=truncated)
    return together


def total_variation(mu: float, sampled: Sequence[tuple[float, float, int]] = ()) -> float:
    """The most that one record changes the probability of any event, rounded up: delta at epsilon = 0.

    Exact for Gaussian releases, where it is 2 Phi(mu / 2) - 1; an upper bound where there are samples.
    """
    _require("mu", mu, mu >= 0, "a finite number, at least 0")
    unsampled = _delta(math.hypot(mu, *(math.sqrt(steps) / noise for noise, _, steps in sampled)), 0.0)
    together = _composed(mu, sampled, 1e-15) if sampled else None
    found = unsampled if together is None else min(unsampled, float(together.get_delta_for_epsilon(0.0)))
    return min(1.0, found * (1 + _ROUNDING))


@lru_cache(maxsize=256)
def _poisson_noise(epsilon: float, rate: float, steps: int, delta: float) -> float:
    enough = noise_multiplier(epsilon, delta, steps)
    if enough <= _LEAST_NOISE:
        return enough
    too_little = max(enough / 2, _LEAST_NOISE)
    while _poisson_epsilon(too_little, rate, steps, delta) <= epsilon:
        enough, too_little = too_little, max(too_little / 2, _LEAST_NOISE)
        if enough == _LEAST_NOISE:  # delta alone covers that the record is drawn at all
            return enough
    while enough > too_little * (1 + _NOISE_STEP):
        middle = math.sqrt(enough * too_little)
        if _poisson_epsilon(middle, rate, steps, delta) <= epsilon:
            enough = middle
        else:
            too_little = middle
    return enough
