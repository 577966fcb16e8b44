"""The predictive probabilities against two ways to the same posterior that share no code with the sampler."""

import warnings

import numpy as np
import torch
from scipy.special import expit

from fedbnn.models.gp.kernel import Kernel, normalise
from fedbnn.models.gp.polya_gamma import gibbs
from fedbnn.models.gp.predictive import condition, latent, probability

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=DeprecationWarning)
    import gpytorch
    from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood

KERNEL = Kernel(outputscale=6.0, lengthscale=0.7, mean=0.4)


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ten points on the circle, two classes that overlap, and seven new points."""
    angle = torch.tensor([0.1, 0.4, 0.7, 1.0, 1.2, 1.5, 1.9, 2.2, 2.6, 3.0], dtype=torch.float64)
    new = torch.tensor([-1.5, 0.0, 0.9, 1.35, 1.7, 2.5, 4.0], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1, 1, 1])
    return *(normalise(torch.stack([a.cos(), a.sin()], 1)) for a in (angle, new)), labels


def by_gibbs() -> torch.Tensor:
    x, new, labels = problem()
    covariance = KERNEL.covariance(x)
    generators = {"torch_rng": torch.Generator().manual_seed(0), "numpy_rng": np.random.default_rng(0)}
    omega = gibbs(covariance, labels, KERNEL.mean, chains=4000, steps=25, **generators)
    f = latent(condition(covariance, labels, omega, KERNEL.mean), KERNEL.cross(x, new), KERNEL.outputscale)
    return probability(f)


def by_elliptical_slices(chains: int = 2000, steps: int = 150, burn: int = 50) -> torch.Tensor:
    """Elliptical slice sampling (Murray et al. 2010) of f at old and new points, with the likelihood itself."""
    x, new, labels = problem()
    rng = np.random.default_rng(1)
    factor = np.linalg.cholesky(KERNEL.covariance(torch.cat([x, new])).numpy())
    sign, n = 2 * labels.numpy() - 1, len(labels)

    def log_likelihood_of(f: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0, -sign * (KERNEL.mean + f[:, :n])).sum(1)

    f = rng.standard_normal((chains, len(factor))) @ factor.T
    total = np.zeros(len(factor) - n)
    for step in range(steps):
        other = rng.standard_normal(f.shape) @ factor.T
        threshold = log_likelihood_of(f) + np.log(rng.random(chains))
        theta = rng.uniform(0, 2 * np.pi, chains)
        low, high = theta - 2 * np.pi, theta.copy()
        while True:
            proposal = f * np.cos(theta)[:, None] + other * np.sin(theta)[:, None]
            refused = log_likelihood_of(proposal) <= threshold
            if not refused.any():
                break
            low, high = np.where(refused & (theta < 0), theta, low), np.where(refused & (theta >= 0), theta, high)
            theta = np.where(refused, rng.uniform(low, high), theta)
        f = proposal
        if step >= burn:
            total += expit(KERNEL.mean + f[:, n:]).mean(0) / (steps - burn)
    return torch.from_numpy(total)


class Logistic(_OneDimensionalLikelihood):
    """GPyTorch's own Bernoulli likelihood is probit; its one-dimensional base class integrates any by quadrature."""

    def forward(self, function_samples, *args, **kwargs):
        return torch.distributions.Bernoulli(logits=function_samples)


class Variational(gpytorch.models.ApproximateGP):
    def __init__(self, x: torch.Tensor) -> None:
        q = gpytorch.variational.CholeskyVariationalDistribution(len(x))
        super().__init__(gpytorch.variational.VariationalStrategy(self, x, q, learn_inducing_locations=False))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.double()
        self.mean_module.constant = KERNEL.mean
        self.covar_module.outputscale = KERNEL.outputscale
        self.covar_module.base_kernel.lengthscale = KERNEL.lengthscale

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def by_variational_inference() -> torch.Tensor:
    x, new, labels = problem()
    model, likelihood = Variational(x), Logistic().double()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(labels))
    optimiser = torch.optim.Adam(model.variational_parameters(), lr=0.1)
    model.train()
    for _ in range(250):
        optimiser.zero_grad()
        (-bound(model(x), labels.double())).backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        f = model(new)
        z = torch.randn(20_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return (f.mean + f.variance.sqrt() * z).sigmoid().mean(0)


def test_probabilities_agree_with_another_sampler_and_with_variational_inference() -> None:
    probs = by_gibbs()
    assert probs.max() - probs.min() > 0.5  # the problem is not a trivial one
    torch.testing.assert_close(probs, by_elliptical_slices(), atol=0.01, rtol=0)
    torch.testing.assert_close(probs, by_variational_inference(), atol=0.05, rtol=0)
