"""The hand-written gradient against autograd, and where training ends against where theory says it must."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import Anchor, Gaussian, VariationalStep, fit, kl_divergence, tune_prior
from fedbnn.models.network import FlatNetwork, view_of
from fedbnn.models.training import Records, channels_last

SHAPE, CLASSES = (1, 8, 8), 4


def network(model: str = "cnn2") -> FlatNetwork:
    return FlatNetwork(lambda: build(ModelSettings(model), SHAPE, CLASSES), seed=0)


def batch(n: int = 6) -> Records:
    g = torch.Generator().manual_seed(1)
    x = channels_last(torch.randn(n, *SHAPE, generator=g))
    return Records(x, torch.randint(0, CLASSES, (n,), generator=g))


def autograd_elbo_gradient(net: FlatNetwork, q: Gaussian, prior: Gaussian, strength: float, seed: int) -> torch.Tensor:
    """d/dtheta of CE(f(x; mu + sigma eps), y) + strength * KL[q || prior], everything through autograd."""
    theta = q.theta.clone().requires_grad_()
    free = Gaussian(theta)
    noise = torch.empty(net.size).normal_(generator=torch.Generator().manual_seed(seed))
    weights = free.mean + free.sd * noise
    parameters, offset = {}, 0
    for name, parameter in net.module.named_parameters():
        parameters[name] = view_of(weights, offset, parameter.shape)
        offset += parameter.numel()
    data = batch()
    loss = functional.cross_entropy(functional_call(net.module, parameters, (data.x,)), data.y)
    (loss + strength * kl_divergence(free, prior)).backward()
    assert theta.grad is not None
    return theta.grad


@pytest.mark.parametrize("model", ["mlp", "cnn2", "cnn3"])
@pytest.mark.parametrize("strength", [0.0, 0.37])
def test_gradient_of_the_elbo_equals_autograd(model: str, strength: float) -> None:
    net = network(model)
    q = Gaussian.around(net.weights.clone(), -2.0)
    prior = Gaussian.isotropic(net.size, 0.3)
    expected = autograd_elbo_gradient(net, q, prior, strength, seed=5)
    step = VariationalStep(net, q, Anchor(prior, strength), 1e-3, torch.Generator().manual_seed(5))
    step(batch())
    assert step.theta.grad is not None
    torch.testing.assert_close(step.theta.grad, expected, rtol=1e-4, atol=1e-6)


def test_steps_equal_adam_on_the_autograd_gradient() -> None:
    net = network("mlp")
    q, prior, data = Gaussian.around(net.weights.clone(), -3.0), Gaussian.isotropic(net.size, 0.2), batch()
    theta = torch.nn.Parameter(q.theta.clone())
    adam = torch.optim.Adam([theta], lr=0.01)
    noise = torch.Generator().manual_seed(9)
    for _ in range(4):
        eps = torch.empty(net.size).normal_(generator=noise)
        free = Gaussian(theta)
        weights, parameters, offset = free.mean + free.sd * eps, {}, 0
        for name, parameter in net.module.named_parameters():
            parameters[name] = view_of(weights, offset, parameter.shape)
            offset += parameter.numel()
        adam.zero_grad()
        loss = functional.cross_entropy(functional_call(net.module, parameters, (data.x,)), data.y)
        (loss + 0.05 * kl_divergence(free, prior)).backward()
        adam.step()
    generator = torch.Generator().manual_seed(9)
    ours, _ = fit(net, q, [data] * 4, learning_rate=0.01, generator=generator, anchor=Anchor(prior, 0.05))
    torch.testing.assert_close(ours.theta, theta.data, rtol=1e-4, atol=1e-5)


class Constant(nn.Module):
    """Outputs that do not depend on the weights: the likelihood is flat, so the posterior is the prior."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), CLASSES) + 0 * self.weight.sum()


def test_without_evidence_the_posterior_is_the_prior() -> None:
    net = FlatNetwork(Constant, seed=0)
    prior = Gaussian(torch.tensor([0.5, -0.25, 0.0, -1.0, 0.0, -2.0]))
    start = Gaussian.around(net.weights.clone(), -5.0)
    generator = torch.Generator().manual_seed(0)
    q, _ = fit(net, start, [batch()] * 600, learning_rate=0.03, generator=generator, anchor=Anchor(prior, 1.0))
    assert kl_divergence(q, prior) < 1e-4


class Coin(nn.Module):
    """logits (0, w): Bayesian inference of a coin's log-odds, small enough for quadrature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.zeros(len(x)), self.weight.expand(len(x))], 1)


def test_posterior_of_a_coin_agrees_with_quadrature() -> None:
    """The best Gaussian for 14 heads of 20 under N(0, 1): minimise the exact ELBO on a grid, compare with ours."""
    heads, n = 14, 20
    y = torch.tensor([1] * heads + [0] * (n - heads))
    net = FlatNetwork(Coin, seed=0)
    prior = Gaussian.isotropic(1, 1.0)
    nodes = torch.linspace(-5, 5, 401, dtype=torch.float64)
    weight = torch.exp(-(nodes**2) / 2) / torch.exp(-(nodes**2) / 2).sum()
    mu, sd = torch.meshgrid(
        torch.linspace(0.2, 1.2, 201, dtype=torch.float64),
        torch.linspace(0.2, 0.8, 121, dtype=torch.float64),
        indexing="ij",
    )
    w = mu[..., None] + sd[..., None] * nodes
    nll = n * functional.softplus(w) - heads * w
    elbo = (nll * weight).sum(-1) + (-sd.log() + 0.5 * (sd**2 + mu**2 - 1))
    best = elbo.argmin()
    start, generator = Gaussian.around(torch.zeros(1), -1.0), torch.Generator().manual_seed(0)
    anchor = Anchor(prior, 1 / n)
    data = Records(torch.zeros(n, 1), y)
    q, _ = fit(net, start, [data] * 800, learning_rate=0.03, generator=generator, anchor=anchor)
    tail = []
    for _ in range(20):
        q, _ = fit(net, q, [data] * 60, learning_rate=0.003, generator=generator, anchor=anchor)
        tail.append((q.mean.item(), q.sd.item()))
    found = torch.tensor(tail, dtype=torch.float64).mean(0)
    assert found[0].item() == pytest.approx(mu.flatten()[best].item(), abs=0.04)
    assert found[1].item() == pytest.approx(sd.flatten()[best].item(), abs=0.04)


def test_tuned_prior_gives_the_target_on_the_alignment_set() -> None:
    net = network("mlp")
    x = batch(12).x
    target = torch.randn(12, CLASSES, generator=torch.Generator().manual_seed(3)).mul(2).softmax(1)
    start = Gaussian.around(net.weights.clone(), -5.0)
    psi, _ = tune_prior(
        net,
        start,
        Records(x, target),
        count=600,
        batch_size=12,
        learning_rate=3e-3,
        order=torch.Generator().manual_seed(0),
        noise=torch.Generator().manual_seed(1),
    )
    net.weights.copy_(psi.mean)
    with torch.no_grad():
        assert (net(x).softmax(1) - target).abs().max() < 0.05
    assert not torch.equal(psi.rho, start.rho), "psi has a spread of its own, tuned with its mean"


def test_zero_steps_leave_the_prior_where_it_starts() -> None:
    net, x = network("mlp"), batch().x
    start = Gaussian.around(net.weights.clone(), -5.0)
    target = torch.full((len(x), CLASSES), 1 / CLASSES)
    generators = {"order": torch.Generator(), "noise": torch.Generator()}
    psi, loss = tune_prior(net, start, Records(x, target), count=0, batch_size=4, learning_rate=1e-3, **generators)
    assert torch.equal(psi.theta, start.theta)
    assert loss == 0.0


def test_where_the_data_say_nothing_a_posterior_at_its_prior_stays_exactly_there() -> None:
    """Adam would turn what rounding leaves of a zero gradient into full steps."""
    network = FlatNetwork(lambda: nn.Linear(5, 3, bias=False), 0)
    start = Gaussian(torch.cat([network.weights, torch.linspace(-5, 1, network.size)]))
    step = VariationalStep(network, start, Anchor(start, 0.25), 1e-2, torch.Generator().manual_seed(0))
    x = torch.rand(8, 5, generator=torch.Generator().manual_seed(1))
    x[:, 0] = 0  # no record says anything about the first weight of each output
    for _ in range(5):
        step(Records(x, torch.arange(8) % 3))
    moved = (step.theta.data != start.theta).view(2, 3, 5)
    assert not moved[:, :, 0].any()
    assert moved[:, :, 1:].all()
