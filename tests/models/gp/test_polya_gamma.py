import sys

import numpy as np
import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.models.gp.kernel import Kernel
from fedbnn.models.gp.polya_gamma import draw_latent, draw_omega, gibbs

N = 6


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return Kernel(outputscale=4.0).covariance(x), torch.tensor([0, 1, 1, 0, 1, 0])


@pytest.mark.parametrize("mean", [0.0, 1.3])
def test_f_given_omega_has_the_closed_form_mean_and_covariance(mean: float) -> None:
    covariance, labels = problem()
    kappa = labels.double() - 0.5
    omega = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 0.3 + 1e-3
    inverse = torch.linalg.inv(covariance)
    s = torch.linalg.inv(inverse + omega.diag())
    expected = s @ (kappa + inverse @ torch.full((N,), mean, dtype=torch.float64))
    woodbury = covariance - covariance @ torch.linalg.inv(covariance + (1 / omega).diag()) @ covariance
    torch.testing.assert_close(s, woodbury, atol=1e-4, rtol=0)  # two ways to write the same matrix

    draws, factor = 40_000, torch.linalg.cholesky(covariance)
    f = draw_latent(covariance, factor, omega.expand(draws, N), kappa, mean, torch.Generator().manual_seed(0))
    error = (f.mean(0) - expected) / (s.diagonal() / draws).sqrt()
    assert error.abs().max() < 4.5
    variances = s.diagonal()[:, None] * s.diagonal() + s.square()
    error = (torch.cov(f.T) - s) / (variances / draws).sqrt()
    assert error.abs().max() < 4.5


def test_omega_given_f_has_the_mean_and_variance_of_the_polya_gamma_distribution() -> None:
    c, draws = 2.0, 100_000
    omega = draw_omega(torch.full((2, draws // 2), -c, dtype=torch.float64), np.random.default_rng(0)).flatten()
    mean = np.tanh(c / 2) / (2 * c)
    variance = (np.sinh(c) - c) / (4 * c**3 * np.cosh(c / 2) ** 2)
    assert abs(omega.mean() - mean) < 4.5 * np.sqrt(variance / draws)
    assert omega.var().item() == pytest.approx(variance, rel=0.05)


def test_the_same_generators_give_the_same_bits_and_no_gradient_flows_through_omega() -> None:
    covariance, labels = problem()

    def run(seed: int) -> torch.Tensor:
        generators = {"torch_rng": torch.Generator().manual_seed(seed), "numpy_rng": np.random.default_rng(seed)}
        return gibbs(covariance.clone().requires_grad_(), labels, 0.0, chains=7, steps=3, **generators)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert run(1).shape == (7, N)
    assert run(1).min() > 0
    assert not run(1).requires_grad


def test_without_the_optional_dependency_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polyagamma", None)
    with pytest.raises(UserError, match=r"pip install 'fedbnn\[gp\]'"):
        draw_omega(torch.zeros(1, 1), np.random.default_rng(0))
