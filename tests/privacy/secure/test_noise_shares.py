"""Noise shares against closed forms; and noise that is really drawn, added up, has the variance that was promised."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedbnn.base.errors import UserError
from fedbnn.base.settings import parsed
from fedbnn.methods import mechanisms  # noqa: F401 - settings know a mechanism by its name once it is defined
from fedbnn.privacy import Budget, PrivacySettings
from fedbnn.privacy.accountant import gaussian_epsilon, gaussian_mu
from fedbnn.privacy.cost import Cost, discrete_gap, total
from fedbnn.privacy.secure.noise_shares import Crowd, NoiseShares
from fedbnn.privacy.sums import UNIT, gap_of, with_noise

DELTA = 1e-5


def delta_of(mu: float, epsilon: float) -> float:
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


@given(st.integers(2, 1000), st.floats(0, 0.999), st.floats(0, 1))
def test_thresholds_bear_a_lying_server(clients, corrupt, survivors):
    crowd = Crowd.of(clients, corrupt, survivors)
    assert 2 * crowd.threshold > clients + crowd.corrupt
    assert crowd.threshold <= clients
    assert crowd.threshold >= survivors * clients - 1e-6
    assert crowd.honest >= 1
    assert crowd.corrupt <= corrupt * clients + 1e-6


@pytest.mark.parametrize(
    ("clients", "corrupt", "threshold"), [(2, 0, 2), (3, 0, 2), (4, 1, 3), (5, 1, 4), (20, 6, 14), (100, 33, 67)]
)
def test_a_third_may_be_corrupt_by_default(clients, corrupt, threshold):
    assert Crowd.of(clients, 0.33, 0.0) == Crowd(clients, corrupt, threshold)


def test_one_client_has_nobody_to_hide_among():
    with pytest.raises(UserError, match="one client alone"):
        Crowd.of(1, 0.33, 0.0)


@pytest.mark.parametrize("multiplicity", [1, 3])
@pytest.mark.parametrize("releases", [1, 4])
def test_each_budget_binds_where_it_is_the_tighter(releases, multiplicity):
    crowd = Crowd(20, 6, 14)
    wide = NoiseShares.of(DELTA, crowd, epsilon=1, local_epsilon=1e4, releases=releases, multiplicity=multiplicity)
    z = wide.plan.noise_multiplier
    sum_mu = math.sqrt(releases) * multiplicity / (z * math.sqrt(8))
    assert sum_mu == pytest.approx(gaussian_mu(1, DELTA), rel=1e-5)
    assert delta_of(sum_mu, 1) == pytest.approx(DELTA, rel=1e-4)
    assert wide.joined_epsilon == pytest.approx(1, rel=1e-5)
    assert wide.joined_epsilon <= 1

    tight = NoiseShares.of(DELTA, crowd, epsilon=8, local_epsilon=1, releases=releases, multiplicity=multiplicity)
    z = tight.plan.noise_multiplier
    assert math.sqrt(releases * multiplicity) / z == pytest.approx(gaussian_mu(1, DELTA), rel=1e-6)
    assert tight.local_epsilon == pytest.approx(1, rel=1e-6)
    assert tight.local_epsilon <= 1
    assert tight.joined_epsilon <= 8


@given(
    st.floats(0.1, 20),
    st.floats(0.1, 60),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(2, 60),
    st.floats(0, 0.33),
)
def test_both_budgets_are_kept(epsilon, local_epsilon, releases, multiplicity, clients, corrupt):
    crowd = Crowd.of(clients, corrupt, 0.0)
    shares = NoiseShares.of(
        DELTA, crowd, epsilon=epsilon, local_epsilon=local_epsilon, releases=releases, multiplicity=multiplicity
    )
    assert shares.joined_epsilon <= epsilon * (1 + 1e-9)
    assert shares.local_epsilon <= local_epsilon * (1 + 1e-9)
    ratio = math.sqrt(crowd.honest / multiplicity)
    assert shares.mu_local == pytest.approx(shares.mu_joined * ratio, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "local_epsilon"), [(1.0, 8.0), (3.0, 3.0), (8.0, 2.0)])
@pytest.mark.parametrize("noise", ["continuous", "discrete"])
def test_the_cap_lets_the_plan_pass_and_no_release_more(epsilon, local_epsilon, noise):
    """What the ledger sees are local costs; they stop where either budget is used up."""
    settings = PrivacySettings(
        mechanism="dp_moments",
        epsilon=epsilon,
        local_epsilon=local_epsilon,
        aggregation="secure",
        releases=3,
        noise=noise,
    )
    cap, plan, shares = settings.cap(12, 2, 20), settings.plan(12, 2, 20), settings.shares(12, 2, 20)
    allowed = gaussian_mu(cap.epsilon, cap.delta)
    one = Cost(plan.mu, gap=2 * gap_of(plan.noise_multiplier, 1001, noise))
    assert total([one] * 3).fits(cap)
    assert not total([one] * 4).fits(cap)
    assert cap.epsilon <= local_epsilon
    assert gaussian_epsilon(allowed * math.sqrt(2 / shares.crowd.honest) * (1 + 1e-6), cap.delta) <= epsilon


def test_noise_that_adds_up_has_the_promised_variance():
    """H clients' noise, drawn as it is for releases, against the variance the joined guarantee needs."""
    shares = NoiseShares.of(DELTA, Crowd(12, 3, 8), epsilon=3, local_epsilon=1e4, releases=1)
    sd, size = shares.plan.noise_multiplier, 20_000
    for noise in ("continuous", "discrete"):
        drawn = [with_noise(torch.zeros(size, dtype=torch.int64), sd, noise) for _ in range(shares.crowd.honest)]
        added = sum(part.numpy() for part in drawn) * UNIT
        needed = 1 / gaussian_mu(3, DELTA)
        assert np.std(added) == pytest.approx(needed, rel=5 / math.sqrt(2 * size))


def test_sums_of_small_discrete_gaussians_are_as_close_as_is_said():
    """The theorem behind the joined guarantee, worked out exactly where it can be: two and three terms, s about 1."""
    grid = np.arange(-60, 61)
    for s in (0.8, 1.0, 1.3):
        one = np.exp(-(grid**2) / (2 * s * s))
        one /= one.sum()
        added = one
        for terms in (2, 3):
            added = np.convolve(added, one)[60:-60]
            exact = np.exp(-(grid**2) / (2 * terms * s * s))
            exact /= exact.sum()
            middle = np.abs(grid) <= 8
            bound = 10 * sum(math.exp(-2 * math.pi**2 * s * s * k / (k + 1)) for k in range(1, terms))
            assert np.abs(np.log(added[middle] / exact[middle])).max() <= bound
            assert bound <= 10 * terms * math.exp(-(math.pi**2) * s * s)


def test_what_the_grid_adds_is_within_the_budget_or_told():
    """The cost with the gap of every client's noise, and of the sum, fits; on a grid far too coarse it does not."""
    budget = Budget(3.0, DELTA)
    shares = NoiseShares.of(DELTA, Crowd(12, 3, 8), epsilon=3, local_epsilon=1e4, releases=2)
    fine = shares.joined_cost(1.0, 1001)
    assert fine.fits(budget)
    assert fine.gap == pytest.approx(2 * 6 * discrete_gap(shares.plan.noise_multiplier / UNIT, 1001))
    assert fine.epsilon(DELTA) == pytest.approx(3, rel=1e-4)
    assert not shares.joined_cost(2.0**-20, 10**9).fits(budget)
    with pytest.raises(UserError, match="too small for the grid"):
        shares.joined_cost(2.0**-23, 1001)


# The settings that shares are made from


@pytest.mark.parametrize("mechanism", ["none", "dp_teacher", "output_perturbation"])
def test_only_mechanisms_that_add_up_are_aggregated(mechanism):
    with pytest.raises(UserError, match=r"aggregation = 'secure': the server needs more than a sum .*dp_moments"):
        parsed(PrivacySettings, f'{{"mechanism": "{mechanism}", "aggregation": "secure"}}')


def test_the_local_budget_is_what_is_promised_and_charged():
    plain = PrivacySettings(mechanism="dp_moments", epsilon=3.0, delta=DELTA)
    secure = PrivacySettings(mechanism="dp_moments", epsilon=3.0, delta=DELTA, aggregation="secure", local_epsilon=16.0)
    assert plain.budget == Budget(3.0, DELTA)
    assert secure.budget == Budget(16.0, DELTA)
    shares = secure.shares(12, 1, 20)
    assert secure.plan(12, 1, 20).noise_multiplier == pytest.approx(shares.plan.noise_multiplier, rel=2e-6)
    assert shares.crowd == Crowd(20, 6, 14)
    assert shares.joined_epsilon <= 3
    # The shares of eight clients are one client's noise without aggregation.
    alone = plain.plan(12, 1, 20).noise_multiplier
    assert shares.plan.noise_multiplier * math.sqrt(8) == pytest.approx(alone, rel=1e-5)


def test_with_the_same_budget_for_both_the_noise_is_that_without_aggregation():
    plain = PrivacySettings(mechanism="dp_moments", epsilon=2.0)
    secure = PrivacySettings(mechanism="dp_moments", epsilon=2.0, aggregation="secure", local_epsilon=2.0)
    for multiplicity in (1, 2):
        assert secure.plan(12, multiplicity, 20) == plain.plan(12, multiplicity, 20)
