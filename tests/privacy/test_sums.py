"""Whole-number sums with noise: what truncation, addition, shares and both kinds of noise promise."""

import math
import os
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr

from fedbnn.base.errors import UserError
from fedbnn.privacy import discrete
from fedbnn.privacy.cost import discrete_gap
from fedbnn.privacy.sums import LARGEST, LARGEST_SD, RELEASED, UNIT, gap_of, grid_sum, with_noise

KINDS = ("continuous", "discrete")
SIZE = 40_000

numbers = st.floats(-1.5, 1.5) | st.floats(-(2.0**20), 2.0**20) | st.floats(-(2.0**-30), 2.0**-30)
rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=8)


def assert_normal(z):
    """Independent draws of N(0, 1). The system's randomness cannot be seeded: 6 standard errors, p-values of 1e-8."""
    z, n = z.double(), len(z)
    assert abs(z.mean()) < 6 / math.sqrt(n)
    assert abs(z.square().mean() - 1) < 6 * math.sqrt(2 / n)
    assert abs((z[1:] * z[:-1]).mean()) < 6 / math.sqrt(n)
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-8


@pytest.fixture
def replayed(monkeypatch):
    """Call it, and the system's randomness starts again from the same place."""

    def restart():
        source = random.Random(0)
        monkeypatch.setattr(os, "urandom", source.randbytes)
        monkeypatch.setattr(discrete.secrets, "randbits", source.getrandbits)

    return restart


# Whole numbers


@given(rows)
def test_a_sum_is_that_of_each_number_truncated_in_exact_arithmetic(values):
    exact = [sum(math.trunc(Fraction(v) * 2**32) for v in column) for column in zip(*values, strict=True)]
    assert grid_sum(torch.tensor(values, dtype=torch.float64)).tolist() == exact


@given(st.lists(numbers, min_size=1, max_size=20))
def test_truncation_never_lengthens(row):
    found = grid_sum(torch.tensor([row], dtype=torch.float64)).tolist()
    assert sum(n * n for n in found) <= sum(Fraction(v) ** 2 for v in row) * 2**64


@given(rows, st.randoms(use_true_random=False))
def test_any_order_and_grouping_gives_the_same_sum(values, order):
    table = torch.tensor(values, dtype=torch.float64)
    expected = grid_sum(table)
    order.shuffle(values)
    cut = order.randrange(len(values) + 1)
    shuffled = torch.tensor(values, dtype=torch.float64)
    assert torch.equal(grid_sum(shuffled[:cut]) + grid_sum(shuffled[cut:]), expected)


def test_single_precision_is_widened_before_it_is_divided():
    table = torch.rand(50, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(grid_sum(table), grid_sum(table.double()))


def test_no_rows_sum_to_nothing():
    assert grid_sum(torch.zeros(0, 4)).tolist() == [0, 0, 0, 0]


# Noise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sd", [2.0**-20, 0.7, 200.0])
def test_noise_is_gaussian_of_the_stated_size_and_independent(kind, sd):
    total = torch.arange(SIZE).view(200, -1) * 2**20
    found = with_noise(total, sd, kind)
    assert found.dtype == torch.int64
    assert found.shape == total.shape
    assert_normal((found - total).flatten().double() * UNIT / sd)


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_many_clients_add_up_to_the_whole_noise(kind):
    """Each of N sends its own sum with the share 1 / N of the variance; anybody adds them."""
    clients, sd = 5, 1.3
    totals = torch.randint(-(2**40), 2**40, (clients, SIZE // 2), generator=torch.Generator().manual_seed(0))
    sent = torch.stack([with_noise(total, sd / math.sqrt(clients), kind) for total in totals])
    noise = (sent - totals).double() * UNIT / sd
    assert_normal(noise.sum(0))
    for part in noise:
        assert_normal(part * math.sqrt(clients))
    correlation = torch.corrcoef(noise) - torch.eye(clients)
    assert correlation.abs().max() < 6 / math.sqrt(SIZE // 2)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_does_not_depend_on_what_it_is_added_to(kind, replayed):
    one = torch.zeros(500, dtype=torch.int64)
    other = torch.randint(-(2**45), 2**45, (500,), generator=torch.Generator().manual_seed(0))
    replayed()
    first = with_noise(one, 2.0, kind)
    replayed()
    assert torch.equal(with_noise(other, 2.0, kind) - other, first)
    assert first.unique().numel() == 500


@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_repeats_it_and_every_call_draws_afresh(kind):
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 (the global seed is what must not matter)
        random.seed(0)
        draws.append(with_noise(torch.zeros(SIZE // 8, dtype=torch.int64), 1.0, kind))
    assert (draws[0] == draws[1]).sum() < 3
    one, other = (draw.double() * UNIT for draw in draws)
    assert abs((one * other).mean()) < 6 / math.sqrt(len(one))


@pytest.mark.parametrize("sd", [2.0**30, 2.0**45, 1e300])
def test_noise_beyond_all_bounds_is_cut_off_and_tells_nothing_of_the_sum(sd, replayed):
    """What does not fit into 64 bits must not come out with the sign of the sum."""
    total = torch.tensor([1, -1]).repeat(50)
    found = []
    for sign in (1, -1):
        replayed()
        found.append(with_noise(sign * total, sd, "continuous"))
    assert torch.equal(found[0].sign(), found[1].sign())
    assert found[0].abs().max() == RELEASED
    assert 20 < (found[0] > 0).sum() < 80


def test_who_knows_how_noise_is_made_cannot_tell_which_sums_are_possible():
    """Phi^-1 of a uniform number of 53 bits is coarser than the grid in its tails: few whole numbers can come out, and
    of two sums only one may explain a release. Here the tails begin at 2.3 standard deviations, at the usual noise of
    some 2^32 units at 5.2. Noise as it should be hits those numbers one time in seven, and more rarely further out.
    """
    s = 2.0**48
    released = with_noise(torch.zeros(200_000, dtype=torch.int64), s * UNIT, "continuous")
    far = released[released < -3 * s]
    assert len(far) > 150
    nearest = (torch.special.ndtr(far.double() / s) * 2**53).round().to(torch.int64)
    guesses = (nearest.unsqueeze(1) + torch.arange(-4, 5)).double().add(0.5) * 2.0**-53
    possible = (torch.special.ndtri(guesses) * s).round().to(torch.int64)
    assert (possible == far.unsqueeze(1)).any(1).double().mean() < 0.4


def test_a_released_number_is_never_too_large_to_be_added_a_thousand_times():
    for noise in ("continuous", "discrete"):
        assert with_noise(torch.zeros(1000, dtype=torch.int64), 2.0**22, noise).abs().max() == RELEASED
    assert 1000 * RELEASED < 2**63


@pytest.mark.parametrize("noise", ["continuous", "discrete"])
def test_a_sum_that_is_too_large_has_all_its_noise_too(noise):
    """Cut off after the noise it would be a constant, on whose noise other clients of an aggregation count."""
    for total in (2**60, -(2**60)):
        found = with_noise(torch.full((SIZE,), total), 2.0, noise)
        edge = LARGEST if total > 0 else -LARGEST
        assert_normal((found - edge).double() * UNIT / 2)


@pytest.mark.parametrize("noise", ["continuous", "discrete"])
def test_large_noise_on_neighbouring_sums_makes_nothing_impossible(noise):
    """At a clip of 2^20 two and three records are beyond the range: what is seldom of one is seldom of the other."""
    two, three = (with_noise(torch.full((SIZE,), count * LARGEST), 1.39 * 2**20, noise) for count in (2, 3))
    one = with_noise(torch.zeros(SIZE, dtype=torch.int64), 1.39 * 2**20, noise)
    below = [float((found < LARGEST // 2).double().mean()) for found in (one, two, three)]
    assert below[1] == pytest.approx(below[2], abs=6 / math.sqrt(SIZE))  # both are at the edge
    assert below[1] == pytest.approx(float(ndtr(-0.5 / 1.39)), abs=6 / math.sqrt(SIZE))
    assert below[0] == pytest.approx(float(ndtr(0.5 / 1.39)), abs=6 / math.sqrt(SIZE))


# What discrete noise costs more than Gaussian


def test_noise_on_the_grid_has_the_gap_of_its_kind():
    assert gap_of(1.5, 1001, "discrete") == discrete_gap(1.5 * 2**32, 1001)
    assert gap_of(1.5, 1001, "continuous") == 0
    with pytest.raises(UserError, match="cannot be drawn"):
        gap_of(1.01 * LARGEST_SD, 1, "discrete")


def test_large_discrete_noise_can_be_drawn():
    """That of a release of many outputs, and up to where nearly all of it is cut off."""
    zeros = torch.zeros(SIZE, dtype=torch.int64)
    assert_normal(with_noise(zeros, 2.0**13, "discrete").double() * UNIT / 2**13)
    assert with_noise(zeros, LARGEST_SD, "discrete").abs().max() == RELEASED
    with pytest.raises(ValueError, match="sigma2"):
        with_noise(zeros, 1.01 * LARGEST_SD, "discrete")


def test_a_generator_repeats_whatever_the_kind():
    total = torch.arange(SIZE) * 2**20
    one, other = (with_noise(total, 0.7, kind, torch.Generator().manual_seed(3)) for kind in KINDS)
    assert torch.equal(one, other)
    assert_normal((one - total).double() * UNIT / 0.7)
    assert not torch.equal(one, with_noise(total, 0.7, "discrete", torch.Generator().manual_seed(4)))
