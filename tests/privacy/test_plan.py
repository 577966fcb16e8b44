"""A budget divided into equal releases: the figures of the design, and any two of three numbers give the third."""

import math
from dataclasses import replace

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from fedbnn.base.errors import UserError
from fedbnn.privacy import Plan, PrivacySettings
from fedbnn.privacy.sums import MARGIN

DELTA = 1e-5
epsilons = st.floats(0.01, 50)
deltas = st.floats(-12, -1).map(lambda power: 10.0**power)
counts = st.integers(1, 10_000)
holders = st.integers(1, 20)


def exact_epsilon(mu, delta):
    """By another root finder than the accountant's."""

    def excess(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 1e-12, 500, xtol=1e-13)


def test_three_epsilon_in_five_releases():
    plan = Plan.of(DELTA, epsilon=3.0, releases=5)
    assert plan.noise_multiplier == pytest.approx(3.1095, abs=5e-5)
    spent = [plan.spent(after) for after in range(6)]
    assert spent == pytest.approx([0, 1.222, 1.793, 2.249, 2.644, 3.000], abs=5e-4)
    assert spent[-1] == plan.spent() <= 3
    exact = [exact_epsilon(math.sqrt(after) / plan.noise_multiplier, DELTA) for after in range(1, 6)]
    assert spent[1:] == pytest.approx(exact, rel=1e-7)
    assert plan.mu == 1 / plan.noise_multiplier


@given(epsilons, deltas, counts, holders)
def test_any_two_give_the_third_on_the_safe_side(epsilon, delta, releases, multiplicity):
    plan = Plan.of(delta, epsilon=epsilon, releases=releases, multiplicity=multiplicity)
    assert (plan.releases, plan.delta, plan.multiplicity) == (releases, delta, multiplicity)
    assert plan.spent() <= epsilon
    assert plan.spent() == pytest.approx(epsilon, rel=1e-6)
    assert plan.spent(releases + 1) > epsilon
    by_noise = Plan.of(delta, epsilon=epsilon, noise=plan.noise_multiplier, multiplicity=multiplicity)
    assert by_noise == plan
    free = Plan.of(delta, noise=plan.noise_multiplier, releases=releases, multiplicity=multiplicity)
    assert free == plan


@given(epsilons, deltas, st.floats(-1, 3).map(lambda power: 10.0**power), holders)
def test_as_many_releases_as_are_affordable_and_not_one_more(epsilon, delta, noise, multiplicity):
    if Plan.of(delta, noise=noise, releases=1, multiplicity=multiplicity).spent() > epsilon:
        with pytest.raises(UserError, match="not one release with noise multiplier"):
            Plan.of(delta, epsilon=epsilon, noise=noise, multiplicity=multiplicity)
        return
    plan = Plan.of(delta, epsilon=epsilon, noise=noise, multiplicity=multiplicity)
    assert plan.noise_multiplier == noise
    assert plan.spent() <= epsilon
    # One more is too much, but for the rounding to the safe side.
    assert plan.spent(plan.releases + 1) > epsilon * (1 - 1e-7)


@pytest.mark.parametrize("epsilon", [0.5, 3, 8])
@pytest.mark.parametrize("releases", [1, 5, 40])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_against_an_independent_accountant(epsilon, releases, delta):
    """dp-accounting composes numerically what is composed in closed form here."""
    plan = Plan.of(delta, epsilon=epsilon, releases=releases, multiplicity=2)
    one = pld.from_gaussian_mechanism(plan.noise_multiplier, value_discretization_interval=1e-3)
    theirs = one.self_compose(2 * releases).get_epsilon_for_delta(delta)
    assert theirs == pytest.approx(epsilon, rel=2e-3)


@given(epsilons, counts, st.integers(2, 20))
def test_a_record_that_g_clients_hold_needs_root_g_times_the_noise(epsilon, releases, multiplicity):
    alone = Plan.of(DELTA, epsilon=epsilon, releases=releases)
    shared = Plan.of(DELTA, epsilon=epsilon, releases=releases, multiplicity=multiplicity)
    assert shared.noise_multiplier == pytest.approx(alone.noise_multiplier * math.sqrt(multiplicity), rel=1e-12)
    assert shared.mu == pytest.approx(alone.mu, rel=1e-12)
    same_noise = Plan(alone.noise_multiplier, releases, DELTA, multiplicity)
    assert same_noise.mu == pytest.approx(alone.mu * math.sqrt(multiplicity), rel=1e-12)
    assert same_noise.spent() > alone.spent()


@pytest.mark.parametrize("given", [{}, {"epsilon": 1.0}, {"noise": 1.0}, {"releases": 1}])
def test_two_of_three_are_needed(given):
    for wrong in (given, {"epsilon": 1.0, "noise": 1.0, "releases": 1}):
        with pytest.raises(UserError, match="exactly two of epsilon, noise multiplier and releases"):
            Plan.of(DELTA, **wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"epsilon": 0.0, "releases": 1}, "epsilon is 0"),
        ({"epsilon": -1.0, "noise": 1.0}, "epsilon is -1"),
        ({"epsilon": math.inf, "releases": 1}, "epsilon is inf"),
        ({"epsilon": math.nan, "releases": 1}, "epsilon is nan"),
        ({"epsilon": 1.0, "releases": 0}, "releases is 0"),
        ({"noise": 1.0, "releases": -1}, "releases is -1"),
        ({"noise": 1.0, "releases": 2.5}, "releases is 2.5"),
        ({"noise": 0.0, "releases": 1}, "noise_multiplier is 0"),
        ({"epsilon": 1.0, "noise": 0.0}, "noise_multiplier is 0"),
        ({"epsilon": 1.0, "noise": math.nan}, "noise_multiplier is nan"),
        ({"epsilon": 1.0, "releases": 1, "multiplicity": 0}, "multiplicity is 0"),
        ({"epsilon": 1.0, "releases": 1, "delta": 0.0}, "delta is 0"),
        ({"epsilon": 1.0, "noise": 5.0, "delta": 1.0}, "delta is 1"),
        ({"noise": 5.0, "releases": 1, "delta": math.nan}, "delta is nan"),
    ],
)
def test_numbers_that_cannot_be_are_named(wrong, named):
    with pytest.raises(UserError, match=f"^{named}") as caught:
        Plan.of(**{"delta": DELTA, **wrong})
    assert "\n" not in str(caught.value)


# The settings a plan is made from


def test_how_many_releases_are_planned():
    for mechanism, count in (("dp_teacher", 1), ("dp_moments", 1), ("output_perturbation", 13)):
        assert PrivacySettings(mechanism=mechanism).planned(12) == count
        assert PrivacySettings(mechanism=mechanism, releases=4).planned(12) == 4
        continuous = PrivacySettings(mechanism=mechanism, epsilon=2.0, noise="continuous").plan(12, 3)
        assert continuous == Plan.of(DELTA, epsilon=2.0, releases=count, multiplicity=3)
        discrete = PrivacySettings(mechanism=mechanism, epsilon=2.0).plan(12, 3)
        assert discrete == replace(continuous, noise_multiplier=continuous.noise_multiplier * (1 + MARGIN))


@pytest.mark.parametrize("records", [2, 12, 49, 250])
def test_a_delta_that_protects_no_record_is_refused(records):
    PrivacySettings(delta=0.99 / records).check_records("hospital", records)
    for delta in (1 / records, min(1.01 / records, 0.9)):
        with pytest.raises(UserError, match=f"privacy.delta = .*client 'hospital' has {records} records") as caught:
            PrivacySettings(delta=delta).check_records("hospital", records)
        assert "\n" not in str(caught.value)
