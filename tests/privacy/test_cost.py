"""Costs that add up: against an independent accountant, in both directions, and for what is really drawn."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedbnn.base.errors import UserError
from fedbnn.privacy import Budget, Cost, Sampled, gaussian_epsilon, gaussian_mu
from fedbnn.privacy.cost import discrete_gap, total

DELTA = 1e-5


def independent(mu: float, sampled: tuple[Sampled, ...], delta: float = DELTA) -> float:
    """By dp-accounting's own accountant of privacy loss distributions."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    if mu:
        accountant.compose(dp_event.GaussianDpEvent(1 / mu))
    for noise, rate, steps in sampled:
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


@given(st.lists(st.floats(0, 5), max_size=6), st.floats(1e-9, 0.1))
def test_gaussian_releases_add_up_to_the_closed_form(mus, delta):
    cost = total(Cost(mu) for mu in mus)
    assert cost.mu == pytest.approx(math.sqrt(sum(mu * mu for mu in mus)), rel=1e-12)
    assert cost.epsilon(delta) == gaussian_epsilon(cost.mu, delta)


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "sampled", [(Sampled(1.2, 0.5, 30),), (Sampled(0.8, 0.1, 20), Sampled(2.0, 0.3, 5)), (Sampled(3.0, 1.0, 4),)]
)
def test_all_kinds_together_against_an_independent_accountant(mu, sampled):
    cost = total([Cost(mu), *(Cost(sampled=(one,)) for one in sampled)])
    expected = independent(mu, sampled)
    assert expected * (1 - 1e-3) < cost.epsilon(DELTA) < expected * (1 + 2e-3)


def test_the_numerical_composition_agrees_with_the_exact_one_where_both_can_be_had():
    """A sample that takes everybody is no sample: the two ways to count must meet."""
    for steps, noise in ((1, 1.4), (5, 3.1), (40, 7.0)):
        exact = Cost(math.sqrt(steps) / noise).epsilon(DELTA)
        assert exact <= Cost(1e-9, (Sampled(noise, 1.0, steps),)).epsilon(DELTA) <= exact * (1 + 1e-9)
        nearly = Cost(1e-3, (Sampled(noise, 1 - 1e-9, steps),)).epsilon(DELTA)
        assert exact * (1 - 1e-4) < nearly < exact * (1 + 3e-3)


def test_equal_samples_are_counted_together_and_order_is_nothing():
    parts = [
        Cost(0.3),
        Cost(sampled=(Sampled(2.0, 0.5, 3),)),
        Cost(0.4, gap=1e-9),
        Cost(sampled=(Sampled(2.0, 0.5, 4),)),
    ]
    assert total(parts) == total(reversed(parts)) == Cost(0.5, (Sampled(2.0, 0.5, 7),), 1e-9)


@given(st.floats(0.05, 8), st.floats(1e-8, 1e-2))
def test_a_budget_is_used_up_and_not_exceeded(epsilon, delta):
    budget, most = Budget(epsilon, delta), gaussian_mu(epsilon, delta)
    assert Cost(most).fits(budget)
    assert Cost(most).epsilon(delta) <= epsilon
    assert not Cost(most * (1 + 1e-6)).fits(budget)


def test_samples_fit_a_budget_exactly_if_their_epsilon_does():
    cost = Cost(0.2, (Sampled(2.0, 0.3, 10),))
    epsilon = cost.epsilon(DELTA)
    assert cost.fits(Budget(epsilon, DELTA))
    assert not cost.fits(Budget(epsilon * (1 - 1e-9), DELTA))
    assert not (cost + Cost(0.1)).fits(Budget(epsilon, DELTA))


# What is drawn


def exact_ratio(s: float, x: int) -> float:
    """The logarithm of discrete over rounded Gaussian probability, in 60 digits."""
    with mpmath.workdps(60):
        low, high = (mpmath.mpf(2 * x + side) / (2 * s) for side in (-1, 1))
        rounded = (mpmath.erf(high / mpmath.sqrt(2)) - mpmath.erf(low / mpmath.sqrt(2))) / 2
        if abs(x) > 5 * s:  # far out, from the complement
            low, high = sorted((abs(low), abs(high)))
            rounded = (mpmath.erfc(low / mpmath.sqrt(2)) - mpmath.erfc(high / mpmath.sqrt(2))) / 2
        density = mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(s) ** 2))
        whole = 1 + 2 * mpmath.nsum(lambda k: mpmath.exp(-2 * (mpmath.pi * k * s) ** 2), [1, mpmath.inf])
        discrete = density / (s * mpmath.sqrt(2 * mpmath.pi) * whole)
        return float(abs(mpmath.log(discrete / rounded)))


@pytest.mark.parametrize("s", [16.0, 33.7, 1000.0, 2.0**20])
def test_no_outcome_is_further_from_rounded_noise_than_the_gap_says(s):
    for sigmas in (0, 0.3, 1, 4, 12, 30, 50):
        assert exact_ratio(s, int(sigmas * s)) <= discrete_gap(s, 1)
    assert exact_ratio(s, int(50 * s)) > discrete_gap(s, 1) / 6  # and not by far


def test_gaps_add_up_and_cost_twice_their_size():
    assert discrete_gap(2.0**31, 10**6) == pytest.approx(10**6 * 2500 / (8 * 2.0**62))
    with pytest.raises(ValueError, match="below 16 it cannot be accounted"):
        discrete_gap(3.0, 1)
    cost = total([Cost(0.5, gap=0.01), Cost(0.5, gap=0.02)])
    exact = gaussian_epsilon(math.hypot(0.5, 0.5), DELTA * math.exp(-0.03)) + 0.06
    assert cost.epsilon(DELTA) == pytest.approx(exact)
    assert cost.epsilon(DELTA) > Cost(math.hypot(0.5, 0.5)).epsilon(DELTA) + 0.06
    assert not Cost(1e-3, gap=2.0).fits(Budget(3.0, DELTA))


def test_small_worlds_whose_guarantee_can_be_worked_out():
    """One number, sigma 16, sensitivity 8: the exact delta of the discrete Gaussian is within what the cost allows."""
    sigma, shift = 16.0, 8
    points = range(-400, 401)
    p = {x: math.exp(-((x / sigma) ** 2) / 2) for x in points}
    norm = sum(p.values())
    gap = discrete_gap(sigma, 1)
    for delta in (1e-2, 1e-4):
        epsilon = Cost(shift / sigma, gap=gap).epsilon(delta)
        beyond = (p.get(x, 0.0) - math.exp(epsilon) * p.get(x + shift, 0.0) for x in points)
        assert sum(max(0.0, one) for one in beyond) / norm <= delta


@pytest.mark.parametrize("wrong", [{"mu": -1.0}, {"mu": math.nan}, {"gap": math.inf}, {"sampled": ((0.0, 0.5, 1),)}])
def test_costs_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=r"must be|cannot be"):
        Cost(**wrong)


def test_budgets_that_cannot_be():
    for epsilon, delta in ((0, 0.1), (-1, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1, 0), (1, 1)):
        with pytest.raises(UserError, match="must be"):
            Budget(epsilon, delta)


# the best guess


@pytest.mark.parametrize(("epsilon", "right"), [(1.0, 55.4), (3.0, 64.1), (8.0, 79.8)])
def test_the_best_guess_of_gaussian_releases_is_that_of_the_two_normal_distributions(epsilon, right):
    """The figures of docs/what-is-protected.md."""
    mu = gaussian_mu(epsilon, DELTA)
    assert Cost(mu).best_guess() == pytest.approx(norm.cdf(mu / 2), rel=1e-8)
    assert Cost(mu).best_guess() >= norm.cdf(mu / 2)
    assert 100 * Cost(mu).best_guess() == pytest.approx(right, abs=0.1)


@pytest.mark.parametrize(("noise", "rate"), [(0.6, 0.1), (1.0, 0.01), (2.0, 0.5), (3.0, 1.0)])
def test_the_best_guess_of_one_sample_has_a_closed_form(noise, rate):
    """N(0, z^2) against (1 - q) N(0, z^2) + q N(1, z^2): q times the total variation without sampling."""
    exact = (1 + rate * (2 * norm.cdf(1 / (2 * noise)) - 1)) / 2
    found = Cost(sampled=(Sampled(noise, rate, 1),)).best_guess()
    assert exact <= found <= exact + 0.01 * (exact - 0.5)


def test_the_best_guess_of_samples_and_gaussian_releases_together():
    """Against the numbers themselves: the likelihood ratio of both, integrated over a grid."""
    noise, rate, mu = 1.0, 0.3, 0.7
    x = np.linspace(-12, 13, 2001)
    without = np.multiply.outer(norm.pdf(x, 0, noise), norm.pdf(x, 0, 1))
    with_record = np.multiply.outer(
        (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise), norm.pdf(x, mu, 1)
    )
    variation = 0.5 * np.abs(with_record - without).sum() * (x[1] - x[0]) ** 2
    found = Cost(mu, (Sampled(noise, rate, 1),)).best_guess()
    assert (1 + variation) / 2 - 1e-6 <= found <= (1 + 1.01 * variation) / 2


def test_the_best_guess_grows_with_everything_and_never_beyond_certainty():
    samples = Cost(sampled=(Sampled(1.0, 0.1, 10),))
    assert Cost().best_guess() == 0.5
    assert samples.best_guess() < (samples + samples).best_guess() < (samples + samples + Cost(1.0)).best_guess()
    assert samples.best_guess() < Cost(math.sqrt(10)).best_guess()  # the same without sampling
    assert Cost(0.5, gap=0.01).best_guess() == pytest.approx(Cost(0.5).best_guess() + math.expm1(0.01) / 2)
    for much in (Cost(1e300), Cost(1.0, gap=50.0), Cost(sampled=(Sampled(0.01, 0.5, 10**6),))):
        assert much.best_guess() == 1
