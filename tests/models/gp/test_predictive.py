import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit

from fedbnn.models.gp.kernel import Kernel, normalise
from fedbnn.models.gp.predictive import Latent, condition, expected_entropy, latent, log_likelihood, probability

KERNEL = Kernel(outputscale=6.0, lengthscale=0.7, mean=0.4)


def one(mean: float, variance: float) -> Latent:
    return Latent(*(torch.tensor([[v]], dtype=torch.float64) for v in (mean, variance)))


def binary_entropy(f: float) -> float:
    return float(np.logaddexp(0, -abs(f)) + abs(f) * expit(-abs(f)))


@pytest.mark.parametrize("variance", [1e-6, 0.3, 2.0, 8.0])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.5, 2.0])
def test_quadrature_equals_adaptive_integration(mean: float, variance: float) -> None:
    def expectation(g) -> float:
        sd = math.sqrt(variance)
        return quad(lambda z: g(mean + sd * z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi), -12, 12, limit=200)[0]

    f = one(mean, variance)
    assert probability(f).item() == pytest.approx(expectation(expit), abs=1.4e-4)
    assert expected_entropy(f).item() == pytest.approx(expectation(binary_entropy), abs=4e-4)
    assert log_likelihood(f, torch.tensor([1])).exp().item() == pytest.approx(probability(f).item(), abs=1e-9)
    assert log_likelihood(f, torch.tensor([0])).exp().item() == pytest.approx(1 - probability(f).item(), abs=1e-9)


def test_quadrature_in_closed_form() -> None:
    assert probability(one(0.0, 5.0)).item() == pytest.approx(0.5, abs=1e-12)  # by symmetry
    assert probability(one(1.5, 0.0)).item() == pytest.approx(expit(1.5), abs=1e-6)  # no variance
    assert expected_entropy(one(0.0, 0.0)).item() == pytest.approx(math.log(2), abs=1e-6)
    assert expected_entropy(one(1.5, 0.0)).item() == pytest.approx(binary_entropy(1.5), abs=1e-6)


def test_a_confident_mistake_has_a_finite_loss() -> None:
    f = one(-2000.0, 0.01)
    assert log_likelihood(f, torch.tensor([1])).item() == pytest.approx(-2000, rel=1e-3)
    assert expected_entropy(f).item() == pytest.approx(0, abs=1e-12)


def test_the_latent_normal_is_the_formula() -> None:
    g = torch.Generator().manual_seed(1)
    x, new = (normalise(torch.randn(n, 3, generator=g)) for n in (9, 4))
    labels = torch.arange(9) % 2
    covariance, cross = KERNEL.covariance(x), KERNEL.cross(x, new)
    omega = torch.rand(3, 9, dtype=torch.float64, generator=g) * 0.25
    f = latent(condition(covariance, labels, omega, KERNEL.mean), cross, KERNEL.outputscale)
    for chain in range(3):
        a = torch.linalg.inv(covariance + (1 / omega[chain]).diag())
        mean = KERNEL.mean + cross.T @ a @ ((labels - 0.5) / omega[chain] - KERNEL.mean)
        torch.testing.assert_close(f.mean[chain], mean)
        torch.testing.assert_close(f.variance[chain], KERNEL.outputscale - (cross.T @ a @ cross).diagonal())


def test_the_gradient_of_a_nodes_prediction_equals_finite_differences() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, dtype=torch.float64, generator=g, requires_grad=True)
    new = torch.randn(4, 3, dtype=torch.float64, generator=g, requires_grad=True)
    omega = torch.rand(2, 5, dtype=torch.float64, generator=g) * 0.25 + 0.01
    labels, asked = torch.tensor([0, 1, 0, 1, 1]), torch.tensor([1, 0, 1, 0])

    def outputs(x: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = normalise(x), normalise(new)
        node = condition(KERNEL.covariance(a), labels, omega, KERNEL.mean)
        f = latent(node, KERNEL.cross(a, b), KERNEL.outputscale)
        return log_likelihood(f, asked), probability(f), expected_entropy(f)

    assert torch.autograd.gradcheck(outputs, (x, new))
