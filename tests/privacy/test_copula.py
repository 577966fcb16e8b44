"""A Gaussian copula from noisy sums: what it keeps, how far a record moves it, and what it costs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, spearmanr

from fedbnn.base.errors import UserError
from fedbnn.data.identity import identify
from fedbnn.privacy import Account, Budget, Plan
from fedbnn.privacy.copula import (
    CELLS,
    RELEASES,
    Column,
    Copula,
    CopulaGate,
    Marginals,
    count_sensitivity,
    fit_copula,
    product_sensitivity,
)
from fedbnn.privacy.sums import UNIT

AGE, SEX, DOSE = Column("age", 0, 120), Column("sex", levels=2), Column("dose", -1, 1, may_miss=True)
COLUMNS = (AGE, SEX, DOSE)
DELTA = 1e-5


def gate(values, folder, epsilon=1.0, columns=COLUMNS, owner="site"):
    values = np.asarray(values, dtype=np.float64)
    identity = identify(values.astype(np.float32), [""] * len(values))
    account = Account(folder / owner, identity, owner, Budget(epsilon, DELTA))
    return CopulaGate(columns, values, Plan.of(DELTA, epsilon=epsilon, releases=RELEASES), account)


def hospital(count, seed):
    """Age, sex and dose that hang together; some doses are missing."""
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal(np.zeros(3), [[1, 0.5, 0.7], [0.5, 1, 0.2], [0.7, 0.2, 1]], count)
    dose = np.where(rng.random(count) < 0.1, np.nan, np.tanh(z[:, 2]))
    return np.stack([60 + 15 * z[:, 0], (z[:, 1] > 0.3).astype(float), dose], axis=1)


rows = st.lists(
    st.tuples(*(st.floats(allow_nan=True, allow_infinity=True, width=32) for _ in COLUMNS)), min_size=1, max_size=6
)


@given(rows, st.lists(st.floats(0, 50), min_size=sum(c.cells for c in COLUMNS), max_size=sum(c.cells for c in COLUMNS)))
@settings(max_examples=100)
def test_no_record_moves_a_sum_further_than_is_accounted_for(values, counts):
    """Whatever its values and those of the others are, and whatever marginals the server sends."""
    values = np.array(values, dtype=np.float64)
    with_it = CopulaGate(COLUMNS, values, Plan.of(DELTA, epsilon=1, releases=2), None)
    without = CopulaGate(COLUMNS, values[:-1], with_it.plan, None)
    marginals = Marginals.of(COLUMNS, np.array(counts))
    moved = (with_it._counted() - without._counted()).double() * UNIT
    assert float(moved.norm()) == pytest.approx(count_sensitivity(COLUMNS))
    if len(values) > 1:
        moved = (with_it._multiplied(marginals) - without._multiplied(marginals)).double() * UNIT
        assert float(moved.norm()) <= product_sensitivity(COLUMNS)


def test_the_bound_on_products_is_reached_about():
    """Of many columns at equal scores, ||v||^2 = c^4 (d^2 - d) / (2 d^2), which tends to the bound."""
    columns = tuple(Column(f"x{at}", levels=2) for at in range(40))
    marginals = Marginals.of(columns, np.tile([0.95, 0.05], 40) * 100)
    one = CopulaGate(columns, np.ones((1, 40)), Plan.of(DELTA, epsilon=1, releases=2), None)
    length = float((one._multiplied(marginals).double() * UNIT).norm())
    assert length == pytest.approx(product_sensitivity(columns) * math.sqrt(39 / 40), rel=1e-6)


def test_without_noise_to_speak_of_it_keeps_marginals_and_rank_correlations(tmp_path):
    sites = [hospital(1500, seed) for seed in (1, 2)]
    copula = fit_copula([gate(x, tmp_path, 1e6, owner=f"site {at}") for at, x in enumerate(sites)])
    real, made = np.concatenate(sites), copula.sample(20_000, 0)
    for at, column in enumerate(COLUMNS):
        shares = [np.bincount(column.cell_of(x[:, at]), minlength=column.cells) / len(x) for x in (real, made)]
        assert np.abs(shares[0] - shares[1]).sum() / 2 < 0.02
    there = [~np.isnan(x[:, 2]) for x in (real, made)]
    for i, j, most in ((0, 1, 0.04), (0, 2, 0.04), (1, 2, 0.04)):
        one, other = (spearmanr(x[ok][:, i], x[ok][:, j])[0] for x, ok in zip((real, made), there, strict=True))
        assert abs(one - other) < most, (i, j, one, other)
    assert copula.marginals.records == pytest.approx(3000, abs=1)


def test_numbers_stay_in_their_range_and_levels_are_whole(tmp_path):
    made = fit_copula([gate(hospital(50, 0), tmp_path, 0.5)]).sample(2000, 0)
    assert made[:, 0].min() >= 0
    assert made[:, 0].max() <= 120
    assert set(made[:, 1]) <= {0.0, 1.0}
    assert not np.isnan(made[:, :2]).any()
    assert np.array_equal(fit_copula([gate(hospital(50, 0), tmp_path, 0.5)]).sample(2000, 0), made, equal_nan=True)


def test_both_sums_are_charged_once_and_use_up_the_budget(tmp_path):
    one = gate(hospital(80, 0), tmp_path, 0.7)
    first = fit_copula([one])
    spent = one.account.spent().epsilon(DELTA)
    assert 0.699 < spent <= 0.7
    again = fit_copula([gate(hospital(80, 0), tmp_path, 0.7)])
    assert np.array_equal(first.correlations, again.correlations)  # the answers are on record
    assert one.account.spent().epsilon(DELTA) == spent
    with pytest.raises(UserError, match=r"0\.7"):  # other columns are another question
        fit_copula([gate(hospital(80, 0), tmp_path, 0.7, (AGE, SEX, Column("dose", -2, 2)))])


def test_the_noise_on_each_sum_is_as_large_as_is_accounted_for(tmp_path):
    """Of an empty client the sums are noise alone: its spread is z Delta."""
    columns = tuple(Column(f"x{at}", 0, 1) for at in range(40))
    nobody = gate(np.zeros((0, 40)), tmp_path, 1.0, columns)
    z = nobody.plan.noise_multiplier
    counts = nobody.counts().double().numpy() * UNIT
    assert counts.size == 40 * CELLS
    assert counts.std() == pytest.approx(z * count_sensitivity(columns), rel=0.15)
    products = nobody.products(Marginals.of(columns, counts)).double().numpy() * UNIT
    assert products.size == 780
    assert products.std() == pytest.approx(z * product_sensitivity(columns), rel=0.15)


def test_scores_are_those_of_a_normal_distribution_cut_into_cells():
    """With many cells of equal share they are its quantiles, with variance near 1."""
    column = Column("x", 0, 1)
    scores = Marginals.of((column,), np.full(CELLS, 10.0)).scores()[0][:-1]
    np.testing.assert_allclose(scores, norm.ppf((np.arange(CELLS) + 0.5) / CELLS))
    assert 0.9 < (scores**2).mean() < 1


def test_correlations_are_a_correlation_matrix_whatever_the_noise():
    rng = np.random.default_rng(0)
    columns = tuple(Column(f"x{at}", levels=3) for at in range(6))
    marginals = Marginals.of(columns, rng.normal(0, 50, 18))
    found = Copula.of(columns, marginals, rng.normal(0, 1e4, 15)).correlations
    np.testing.assert_allclose(np.diag(found), 1)
    np.testing.assert_array_equal(found, found.T)
    assert np.linalg.eigvalsh(found).min() > 0


@given(st.floats(-1e30, 1e30), st.booleans())
def test_a_value_lies_in_the_cell_it_is_said_to(value, may_miss):
    column = Column("x", -5.0, 20.0, may_miss=may_miss)
    cell = column.cell_of(np.array([value]))
    back = column.values_of(cell, np.array([0.5]))
    assert abs(back[0] - np.clip(value, -5, 20)) <= 25 / CELLS / 2 + 1e-9


def test_a_range_that_is_none_is_refused():
    with pytest.raises(ValueError, match="column 'x': the range 3 to 3 is none"):
        Column("x", 3, 3)


def test_torch_is_left_on_whole_numbers(tmp_path):
    assert gate(hospital(20, 0), tmp_path).counts().dtype == torch.int64
