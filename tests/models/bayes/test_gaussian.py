import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl

from fedbnn.models.bayes import Gaussian, inverse_softplus, kl_divergence

numbers = st.floats(-3, 3)


@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=20))
def test_kl_equals_torch_distributions(rows: list[tuple[float, float, float, float]]) -> None:
    table = torch.tensor(rows, dtype=torch.float64).T
    q, p = Gaussian(torch.cat([table[0], table[1]])), Gaussian(torch.cat([table[2], table[3]]))
    expected = torch_kl(Normal(q.mean, q.sd), Normal(p.mean, p.sd)).sum()
    torch.testing.assert_close(kl_divergence(q, p), expected)
    assert kl_divergence(q, q).abs() < 1e-12


@given(st.floats(1e-6, 50))
def test_inverse_softplus_inverts(sd: float) -> None:
    rho = torch.tensor(inverse_softplus(sd), dtype=torch.float64)
    assert torch.nn.functional.softplus(rho).item() == pytest.approx(sd, rel=1e-9)


def test_isotropic_prior_has_the_asked_standard_deviation() -> None:
    prior = Gaussian.isotropic(7, 0.3)
    assert prior.mean.eq(0).all()
    torch.testing.assert_close(prior.sd, torch.full((7,), 0.3))


def test_floor_lifts_narrow_weights_only_and_leaves_means() -> None:
    start = Gaussian(torch.tensor([1.0, 2.0, inverse_softplus(0.01), inverse_softplus(0.5)]))
    lifted = start.with_sd_at_least(0.1)
    torch.testing.assert_close(lifted.mean, start.mean)
    torch.testing.assert_close(lifted.sd, torch.tensor([0.1, 0.5]))


def test_initial_rho_of_minus_five_is_a_narrow_posterior() -> None:
    assert Gaussian.around(torch.zeros(1), -5.0).sd.item() == pytest.approx(math.log1p(math.exp(-5)), rel=1e-5)
