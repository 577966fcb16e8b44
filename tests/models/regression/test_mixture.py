import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from torch.distributions import Categorical, MixtureSameFamily, Normal

from fedbnn.models.regression import Mixture, Scale

NUMBERS = st.floats(-20, 20)
SPREADS = st.floats(0.05, 30)


def some(draws: int = 4, records: int = 3, seed: int = 0) -> tuple[Mixture, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(draws, records, generator=g, dtype=torch.float64) * 2
    variances = torch.rand(draws, records, generator=g, dtype=torch.float64) + 0.1
    return Mixture(means, variances), torch.randn(records, generator=g, dtype=torch.float64) * 3


def oracle(mixture: Mixture) -> MixtureSameFamily:
    """The same of torch."""
    parts = Normal(mixture.means.T, mixture.variances.T.sqrt())
    return MixtureSameFamily(Categorical(torch.ones_like(mixture.means.T)), parts)


def test_density_distribution_and_moments_are_those_of_torch() -> None:
    mixture, y = some()
    known = oracle(mixture)
    torch.testing.assert_close(mixture.nll(y), -known.log_prob(y))
    torch.testing.assert_close(mixture.cdf(y), known.cdf(y))
    torch.testing.assert_close(mixture.mean, known.mean)
    torch.testing.assert_close(mixture.total, known.variance)  # noise and doubt are all of it


@pytest.mark.parametrize("draws", [1, 2, 7])
def test_crps_is_the_integral_of_the_squared_difference_from_the_step(draws: int) -> None:
    """CRPS = integral of (F(t) - 1[t >= y])^2 dt."""
    mixture, y = some(draws, 1, seed=draws)
    known, at = oracle(mixture), float(y[0])

    def part(t: float, above: bool) -> float:
        return float((known.cdf(torch.tensor([t], dtype=torch.float64)) - float(above)).square())

    below, above = quad(lambda t: part(t, False), at - 60, at, limit=300), quad(lambda t: part(t, True), at, at + 60)
    assert float(mixture.crps(y)[0]) == pytest.approx(below[0] + above[0], abs=1e-6)


@given(NUMBERS, SPREADS, NUMBERS)
def test_crps_of_one_gaussian_is_the_closed_form(mean: float, variance: float, y: float) -> None:
    """s (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))   (Gneiting, Raftery 2007)"""
    sd = math.sqrt(variance)
    z = (y - mean) / sd
    phi, cdf = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), (1 + math.erf(z / math.sqrt(2))) / 2
    expected = sd * (z * (2 * cdf - 1) + 2 * phi - 1 / math.sqrt(math.pi))
    one = Mixture(torch.tensor([[mean]]).double(), torch.tensor([[variance]]).double())
    assert float(one.crps(torch.tensor([y]).double())) == pytest.approx(expected, abs=1e-6)


def test_crps_of_a_sure_model_is_the_absolute_error_and_equal_draws_are_one() -> None:
    y = torch.tensor([3.0], dtype=torch.float64)
    sure = Mixture(torch.full((5, 1), 1.0).double(), torch.full((5, 1), 1e-14).double())
    assert float(sure.crps(y)) == pytest.approx(2.0, abs=1e-6)
    one, many = (Mixture(torch.full((k, 1), 1.0).double(), torch.full((k, 1), 2.0).double()) for k in (1, 5))
    torch.testing.assert_close(one.crps(y), many.crps(y))
    assert float(many.epistemic) == 0


@given(st.floats(0.001, 0.999), st.integers(0, 20))
def test_a_quantile_is_where_the_distribution_function_is(share: float, seed: int) -> None:
    mixture, _ = some(5, 4, seed)
    assert torch.allclose(mixture.cdf(mixture.quantile(share)), torch.full((4,), share).double(), atol=1e-9)


def test_an_interval_holds_its_share_of_draws() -> None:
    mixture, _ = some(3, 2)
    low, high = mixture.interval(0.9)
    torch.manual_seed(0)
    drawn = oracle(mixture).sample((20000,))
    inside = ((low <= drawn) & (drawn <= high)).double().mean(0)
    assert ((inside - 0.9).abs() < 4 * math.sqrt(0.9 * 0.1 / 20000)).all()


def test_units_move_and_stretch_everything_alike() -> None:
    mixture, y = some()
    scale = Scale(150.0, 80.0)
    told = mixture.in_units(scale)
    torch.testing.assert_close(told.mean, mixture.mean * 80 + 150)
    torch.testing.assert_close(told.sd, mixture.sd * 80)
    torch.testing.assert_close(told.quantile(0.3), mixture.quantile(0.3) * 80 + 150)
    torch.testing.assert_close(told.crps(y * 80 + 150), mixture.crps(y) * 80)
    torch.testing.assert_close(told.nll(y * 80 + 150), mixture.nll(y) + math.log(80))
    torch.testing.assert_close(scale.standard(y * 80 + 150), y)
    assert np.allclose(scale.standard(np.array([150.0, 230.0], dtype=np.float32)), [0, 1])
