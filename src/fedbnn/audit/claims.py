"""What a method claims to hide, as the mu that an audit's bound is held against.

Gaussian releases of the budget (epsilon, delta) have together exactly the mu that the budget allows. A record that g
clients hold is paid for g times, so one client's part of it is mu / sqrt(g).

DP-SGD's steps see each record with probability q and are not Gaussian. Their claim is what the composition of their
privacy loss distributions allows: the total variation TV = delta(0), which is the most that a guess can gain. It is
told as the mu of the Gaussian with the same TV, 2 Phi^-1((1 + TV) / 2); at q = 1 that is the mu of the budget. TV is
worked out from the noise that the budget needs for the planned steps, not from the noise that the method used.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scipy.special import ndtr, ndtri

from fedbnn.base.errors import UserError
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Client
from fedbnn.methods.noisy_sums import NoisySums
from fedbnn.methods.own_budget import OwnBudget
from fedbnn.privacy.accountant import gaussian_epsilon, gaussian_mu, subsampled_epsilon, subsampled_noise
from fedbnn.privacy.cost import Budget

_CELL = 1e-3  # of the grid of privacy losses; an upper bound of the total variation on any grid
_NEAR = 1e-3  # relative; how close the noise that explains a bound is worked out


@dataclass(frozen=True)
class Claim:
    """Attributes:

    mechanism: its name, or that of the method which has its own.
    releases: among how many the budget is divided.
    mu: of all of them together, for one client's part.
    gaussian: whether they are, and not only as good as a Gaussian for one who guesses.
    epsilon_of: the epsilon, at the budget's delta, of the same mechanism with so little noise that its mu is this.

    """

    mechanism: str
    budget: Budget
    releases: int
    mu: float
    gaussian: bool
    epsilon_of: Callable[[float], float]


def claim_of(method: Method[Any, Any], client: Client) -> Claim:
    """What is promised to the records of this client, or to the client; a UserError if nothing is."""
    privacy = client.privacy
    promise = method.protects(privacy)
    if promise is None:
        setting = f"privacy.mechanism = '{privacy.mechanism}'"
        if isinstance(method, OwnBudget):
            setting = f"methods.{method.name}.noise = '{method.noise}'"
        raise UserError(f"{setting}: nothing is promised that could be refuted")
    if isinstance(method, NoisySums):
        sums = method.releases(client.rounds + 1)
        if promise.unit == "client":
            return _gaussian(method.name, promise.budget, sums, 1)
        return _subsampled(promise.budget, method.sampling_rate, sums, client.multiplicity, method.name)
    return _gaussian(privacy.mechanism, promise.budget, privacy.planned(client.rounds), client.multiplicity)


def _gaussian(name: str, budget: Budget, releases: int, multiplicity: int) -> Claim:
    mu = gaussian_mu(budget.epsilon, budget.delta) / math.sqrt(multiplicity)
    return Claim(name, budget, releases, mu, True, lambda mu: gaussian_epsilon(mu, budget.delta, multiplicity))


def _subsampled(budget: Budget, rate: float, steps: int, multiplicity: int, name: str) -> Claim:
    if rate == 1:
        return _gaussian(name, budget, steps, multiplicity)
    noise = subsampled_noise(budget.epsilon, rate, steps, budget.delta, multiplicity)

    def epsilon_of(mu: float) -> float:
        """With the least noise at which nobody could have guessed so well."""
        low = high = noise
        while subsampled_mu(low, rate, steps) < mu:
            low /= 2
        while subsampled_mu(high, rate, steps) > mu:
            if high > 1e3 * noise:
                return 0.0
            high *= 2
        while high > low * (1 + _NEAR):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if subsampled_mu(middle, rate, steps) <= mu else (middle, high)
        return subsampled_epsilon(high, rate, steps, budget.delta, multiplicity)

    return Claim(name, budget, steps, subsampled_mu(noise, rate, steps), False, epsilon_of)


def subsampled_mu(noise: float, rate: float, steps: int) -> float:
    """The mu of the Gaussian with the total variation of so many subsampled steps."""
    losses: Any = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    one = losses.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=_CELL, use_connect_dots=True
    )
    apart = float(one.self_compose(steps).get_delta_for_epsilon(0.0))
    unsampled = 2 * float(ndtr(math.sqrt(steps) / noise / 2)) - 1
    return 2 * float(ndtri((1 + min(apart, unsampled)) / 2))
