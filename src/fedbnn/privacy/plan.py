"""A budget divided into equal Gaussian releases: any one of epsilon, noise and number follows from the others."""

import math
from dataclasses import dataclass

from fedbnn.base.errors import UserError
from fedbnn.privacy.accountant import composed_mu, gaussian_epsilon, gaussian_mu, noise_multiplier

_MOST_RELEASES = 10**9


@dataclass(frozen=True)
class Plan:
    """`releases` Gaussian releases, each with noise of `noise_multiplier` times its sensitivity on every number.

    A record that is held by several clients (`multiplicity`) is in that many times as many releases.
    """

    noise_multiplier: float
    releases: int
    delta: float
    multiplicity: int = 1

    @classmethod
    def of(
        cls,
        delta: float,
        *,
        epsilon: float | None = None,
        noise: float | None = None,
        releases: int | None = None,
        multiplicity: int = 1,
    ) -> "Plan":
        """The plan in which the one of epsilon, noise multiplier and releases that is missing follows from the others.

        Noise and the cost are rounded up, the number of releases down.
        """
        try:
            if noise is None and epsilon is not None and releases is not None:
                noise = noise_multiplier(epsilon, delta, releases, multiplicity)
            elif releases is None and epsilon is not None and noise is not None:
                releases = _affordable(epsilon, delta, noise, multiplicity)
            elif epsilon is not None or noise is None or releases is None:
                raise UserError("give exactly two of epsilon, noise multiplier and releases: the third follows")
            plan = cls(noise, releases, delta, multiplicity)
            plan.spent()
            return plan
        except ValueError as error:
            raise UserError(str(error)) from None

    @property
    def mu(self) -> float:
        """Of one release."""
        return composed_mu(self.noise_multiplier, 1, self.multiplicity)

    def spent(self, after: int | None = None) -> float:
        """Epsilon after that many releases, or all."""
        count = self.releases if after is None else after
        return gaussian_epsilon(composed_mu(self.noise_multiplier, count, self.multiplicity), self.delta)


def _affordable(epsilon: float, delta: float, noise: float, multiplicity: int) -> int:
    one = composed_mu(noise, 1, multiplicity)
    count = int(min(gaussian_mu(epsilon, delta) / one, math.sqrt(_MOST_RELEASES)) ** 2 * (1 + 1e-12))
    while count and gaussian_epsilon(math.sqrt(count) * one, delta) > epsilon:
        count -= 1
    if count == 0:
        raise UserError(
            f"not one release with noise multiplier {noise:g} is within epsilon {epsilon:g}: a single one costs "
            f"{gaussian_epsilon(one, delta):.4g}"
        )
    return count
