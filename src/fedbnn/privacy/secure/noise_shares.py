"""How much noise each client adds where only the sum of all is seen, and what that guarantees, one way and the other.

n clients, of which up to c work with the server and t stay to the end: among those t at least H = t - c add noise that
nobody can subtract. With noise of deviation z Delta at each client, one release costs a record held by g clients

    mu_joined = g / (z sqrt(H))       if the aggregation holds: the sum moves by up to g Delta, its noise is z sqrt(H)
    mu_local  = sqrt(g) / z           if it is broken: g releases, each with a client's own noise alone

so mu_local = mu_joined sqrt(H / g). z is the larger of what both budgets need. t is at least the smallest number with
2 t > n + c, which the protocol needs against a server that lies (`session`): 2 n / 3 for c < n / 3.

The sum of H noises on the grid is not quite a Gaussian on the grid. A sum of H discrete Gaussians of deviation s, in
units, has probabilities within a factor exp(+-10 H e^(-pi^2 s^2)) of those of the discrete Gaussian of deviation
sqrt(H) s (Kairouz, Liu, Steinke 2021, theorem 1), which from s = 2^10 on is no difference at all. That one is within
a factor exp(gap) of a rounded Gaussian, and so is each Gaussian that was rounded instead of drawn discrete, with the
gap of noise of deviation s (`privacy.cost`): (H + 1) gap together. More survivors than H only add independent noise.
"""

import math
from dataclasses import dataclass

from fedbnn.base.errors import UserError
from fedbnn.privacy.accountant import gaussian_epsilon, noise_multiplier
from fedbnn.privacy.cost import Cost, discrete_gap
from fedbnn.privacy.plan import Plan
from fedbnn.privacy.sums import MARGIN, UNIT

_LEAST_SIGMA = 2.0**10  # in units of the grid
_ROOM = 4 * MARGIN  # what the ledger's cap leaves for rounding; the noise has as much more


@dataclass(frozen=True)
class Crowd:
    """Who adds up. Attributes:

    clients: n, all of them.
    corrupt: c, how many may work with the server.
    threshold: t, how many must stay to the end.

    """

    clients: int
    corrupt: int
    threshold: int

    @classmethod
    def of(cls, clients: int, corrupt: float, survivors: float) -> "Crowd":
        """From the share of clients that may work with the server, and the share that must stay at least."""
        bad = math.floor(corrupt * clients + 1e-9)
        if clients < 2:
            raise UserError("privacy.aggregation = 'secure': one client alone has nobody to be added to")
        return cls(clients, bad, max((clients + bad) // 2 + 1, math.ceil(survivors * clients - 1e-9)))

    @property
    def honest(self) -> int:
        """H: how many of the survivors add noise that nobody can subtract."""
        return self.threshold - self.corrupt


@dataclass(frozen=True)
class NoiseShares:
    """What a client adds, as a plan, and the crowd in which it does."""

    plan: Plan
    crowd: Crowd

    @classmethod
    def of(
        cls,
        delta: float,
        crowd: Crowd,
        *,
        epsilon: float,
        local_epsilon: float,
        releases: int,
        multiplicity: int = 1,
    ) -> "NoiseShares":
        """The least noise with which the sum costs at most epsilon, and a client's own part at most local_epsilon."""
        local = Plan.of(delta, epsilon=local_epsilon, releases=releases, multiplicity=multiplicity)
        joined = noise_multiplier(epsilon, delta, releases, multiplicity**2) / math.sqrt(crowd.honest)
        noise = max(local.noise_multiplier, joined * (1 + MARGIN + _ROOM))
        return cls(Plan(noise, releases, delta, multiplicity), crowd)

    @property
    def mu_local(self) -> float:
        """Of one release, if the aggregation is broken."""
        return self.plan.mu

    @property
    def mu_joined(self) -> float:
        """Of one release, if the aggregation holds."""
        return self.mu_local * math.sqrt(self.plan.multiplicity / self.crowd.honest)

    @property
    def local_epsilon(self) -> float:
        """Of all releases, if the aggregation is broken."""
        return self.plan.spent()

    @property
    def joined_epsilon(self) -> float:
        """Of all releases, if the aggregation holds."""
        return gaussian_epsilon(math.sqrt(self.plan.releases) * self.mu_joined, self.plan.delta)

    @property
    def cap(self) -> float:
        """The epsilon that the ledger may come to for the local guarantee without either budget being exceeded."""
        return gaussian_epsilon(math.sqrt(self.plan.releases) * self.mu_local * (1 + _ROOM), self.plan.delta)

    def joined_cost(self, sensitivity: float, numbers: int) -> Cost:
        """Of all releases, each of so many numbers, if the aggregation holds; with what the grid adds."""
        sigma = self.plan.noise_multiplier * sensitivity / UNIT
        if sigma < _LEAST_SIGMA:
            raise UserError(f"privacy.aggregation = 'secure': noise of {sigma:.3g} units is too small for the grid")
        count = self.plan.releases * self.plan.multiplicity * (self.crowd.honest + 1)
        return Cost(math.sqrt(self.plan.releases) * self.mu_joined, gap=count * discrete_gap(sigma, numbers))
