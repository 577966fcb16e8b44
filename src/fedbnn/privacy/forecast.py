"""What a plan of releases will cost release by release, and how much its noise leaves of the signal.

    signal to noise = length of the noiseless release, less what it is without records, over that of its noise

                    = signal / (sigma sqrt(numbers)),   sigma = z Delta,   of one release (`privacy.mechanism.Release`)

Releases of N clients, added or averaged, have sqrt(N) times that: their noise is independent.
"""

import math
from dataclasses import dataclass
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.privacy.mechanism import Release, Sizes, known_mechanisms
from fedbnn.privacy.plan import Plan

_ALL_SHOWN = 10  # releases; of more than these, some
_MOST = 10**9
_LEAST = {"records": 1, "classes": 2, "dimensions": 3, "alignment": 1, "clients": 1}
_WIDEST = 1e6  # an epsilon or noise multiplier beyond it, or below its reciprocal, is a slip of the pen


@dataclass(frozen=True)
class Forecast:
    """Attributes:

    epsilon: of all releases together.
    release: what one of them is.
    deviation: standard deviation of the noise on each of these numbers.
    spent: (number of releases, epsilon after them), some of them where there are many.
    one_client: signal to noise of one release of one client.
    all_clients: of the releases of all clients together; None where they are not put together before use.

    """

    mechanism: str
    plan: Plan
    sizes: Sizes
    epsilon: float
    release: Release
    deviation: float
    spent: tuple[tuple[int, float], ...]
    one_client: float
    all_clients: float | None

    @property
    def drowned(self) -> bool:
        """Whether noise outweighs signal even at best."""
        return (self.one_client if self.all_clients is None else self.all_clients) < 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "delta": self.plan.delta,
            "noise_multiplier": self.plan.noise_multiplier,
            "releases": self.plan.releases,
            "multiplicity": self.plan.multiplicity,
            "spent": [{"releases": count, "epsilon": epsilon} for count, epsilon in self.spent],
            "sensitivity": self.release.sensitivity,
            "numbers": self.release.numbers,
            "noise_standard_deviation": self.deviation,
            "signal_to_noise": {"one_client": self.one_client, "all_clients": self.all_clients},
        }


def forecast(
    mechanism: str,
    delta: float,
    sizes: Sizes,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    releases: int | None = None,
    multiplicity: int = 1,
) -> Forecast:
    """What follows from two of epsilon, noise multiplier and releases; without any, epsilon 3 in one release."""
    if epsilon is None and noise_multiplier is None and releases is None:
        epsilon, releases = 3.0, 1
    for name, value in (("epsilon", epsilon), ("noise multiplier", noise_multiplier)):
        if value is not None:
            _require(name, value, 1 / _WIDEST, _WIDEST)
    if releases is not None:
        _require("releases", releases, 1, _MOST)
    for name, least in _LEAST.items():
        _require(name, getattr(sizes, name), least, _MOST)
    _require("multiplicity", multiplicity, 1, sizes.clients)
    if not 0 < delta < 1 / sizes.records:
        raise UserError(
            f"delta = {delta:g}: must be above 0 and below 1 / {sizes.records}, one over the number of records; "
            "any larger one would allow to publish a record"
        )
    plan = Plan.of(delta, epsilon=epsilon, noise=noise_multiplier, releases=releases, multiplicity=multiplicity)
    if (release := known_mechanisms()[mechanism].release(sizes)) is None:
        raise UserError(f"mechanism = '{mechanism}': it has no noise, so there is nothing to plan")
    deviation = plan.noise_multiplier * release.sensitivity
    one = release.signal / (deviation * math.sqrt(release.numbers))
    together = one * math.sqrt(sizes.clients) if release.joined else None
    spent = tuple((count, plan.spent(count)) for count in milestones(plan.releases))
    return Forecast(mechanism, plan, sizes, plan.spent(), release, deviation, spent, one, together)


def milestones(releases: int) -> list[int]:
    """After which releases to tell what is spent: all of a few; of many the first, 1, 2, 5 times tens, and the last."""
    if releases <= _ALL_SHOWN:
        return list(range(1, releases + 1))
    decades = range(len(str(releases)))
    return [step * 10**d for d in decades for step in (1, 2, 5) if step * 10**d < releases] + [releases]


def _require(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UserError(f"{name} = {value}: must be between {least:.10g} and {most:.10g}")
