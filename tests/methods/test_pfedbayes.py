"""pFedBayes: its divergence, both of its gradients, unit noise in its draws, and its server."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn import functional

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods import PFedBayes
from fedbnn.methods import pfedbayes as module
from fedbnn.methods.averaging import Global
from fedbnn.methods.bayesian import Posterior
from fedbnn.methods.pfedbayes import Follow, two_level
from fedbnn.models.architectures import build
from fedbnn.models.bayes import Gaussian, VariationalStep
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, steps
from tests.federation_sample import first_message, small_sites

RNG = Stream((0, "test"))
SITES = small_sites(3, models=("mlp",), batch_size=5)


def random_gaussian(size: int, seed: int) -> Gaussian:
    """Means around 0 and rho around -2, all different."""
    mean, rho = torch.randn(2, size, generator=torch.Generator().manual_seed(seed)).unbind()
    return Gaussian(torch.cat([mean, rho - 2]))


def as_normal(theta: Tensor) -> Normal:
    mean, rho = theta.double().chunk(2)
    return Normal(mean, functional.softplus(rho))


# The two levels


def test_the_divergence_between_the_levels_is_torchs() -> None:
    method, client = PFedBayes(iterations=4, inner_steps=2), SITES[0].client
    update = method.client_update(method.client_init(client), client, first_message(method, SITES), 0, RNG)
    q, w = as_normal(update.state.theta), as_normal(update.message.arrays["weights"])
    assert update.info["kl"] == pytest.approx(float(kl_divergence(q, w).sum()), rel=1e-3)
    assert update.info["kl"] > 0.01
    assert update.info["mean_sd"] == pytest.approx(float(q.stddev.mean()), rel=1e-4)


@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_following_goes_down_the_divergences_gradient(seed: int, zeta: float) -> None:
    w, q = random_gaussian(9, seed), random_gaussian(9, seed + 1)
    theta = w.theta.double().requires_grad_()
    (expected,) = torch.autograd.grad(zeta * kl_divergence(as_normal(q.theta), as_normal(theta)).sum(), theta)
    follow = Follow(w, zeta, 1e-3)
    follow(q)
    torch.testing.assert_close(follow.gradient.theta.double(), expected, rtol=1e-3, atol=1e-4 * zeta)
    moved = follow.w.theta - w.theta
    torch.testing.assert_close(moved, -1e-3 * expected.sign().float(), rtol=0.02, atol=1e-5)  # as Adam's first step is


def test_the_fixed_point_of_following_is_q() -> None:
    q = random_gaussian(50, 3)
    there = Follow(q, 10.0, 1e-3)
    there(q)
    assert there.gradient.theta.eq(0).all()
    assert torch.equal(there.w.theta, q.theta)
    away = Follow(Gaussian(q.theta + 0.3 * torch.randn(100, generator=RNG.torch())), 10.0, 0.01)
    distances = []
    for _ in range(10):
        distances.append(float(kl_divergence(as_normal(q.theta), as_normal(away.w.theta)).sum()))
        for _ in range(100):
            away(q)
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-4 * distances[0]
    torch.testing.assert_close(away.w.theta, q.theta, rtol=0.05, atol=0.05)


def test_q_goes_down_the_gradient_of_its_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """(1 / n) of -(n / b) sum log p + zeta KL[q || w], by autograd through the draw of weights."""
    made: list[VariationalStep] = []

    class Kept(VariationalStep):
        def __init__(self, *arguments: Any, eps: float) -> None:
            super().__init__(*arguments, eps=eps)
            made.append(self)

    monkeypatch.setattr(module, "VariationalStep", Kept)
    client, zeta = SITES[0].client, 7.0
    size = client.network.size
    q, w = Gaussian.around(client.initial_weights(), -3.0), random_gaussian(size, 1)
    batch = next(steps(client.train, 1, 5, RNG.torch()))
    generator = RNG.child("weights")
    two_level(
        client.network,
        q,
        w,
        iter([batch]),
        records=12,
        inner_steps=1,
        zeta=zeta,
        learning_rate=1e-3,
        generator=generator.torch(),
    )
    theta = q.theta.clone().requires_grad_()
    noise = torch.randn(size, generator=generator.torch())
    drawn = theta[:size] + functional.softplus(theta[size:]) * noise
    log_likelihood = -functional.cross_entropy(forward(client, drawn, batch.x), batch.y, reduction="sum")
    objective = -(12 / 5) * log_likelihood + zeta * kl_divergence(as_normal(theta), as_normal(w.theta)).sum()
    (expected,) = torch.autograd.grad(objective / 12, theta)
    [step] = made
    assert step.theta.grad is not None
    torch.testing.assert_close(step.theta.grad, expected, rtol=1e-3, atol=1e-5)


def forward(client: Client, weights: Tensor, x: Tensor) -> Tensor:
    module, offset, parameters = client.network.module, 0, {}
    for name, parameter in module.named_parameters():
        parameters[name] = weights[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    return functional_call(module, parameters, (x,))


# The noise


class Recording(FlatNetwork):
    """A network that remembers with which weights it was called."""

    def __init__(self, client: Client) -> None:
        super().__init__(lambda: build(client.model, (1, 8, 8), client.classes), 0)
        self.seen: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(self.weights.clone())
        return super().__call__(x)


def test_training_draws_weights_with_unit_noise() -> None:
    """(w - mu) / sd is standard normal, drawn anew in every step; with a tiny step size mu and sd stay as they are."""
    client = SITES[0].client
    network = Recording(client)
    q = random_gaussian(network.size, 5)
    two_level(
        network,
        q,
        q,
        steps(client.train, 10, 5, RNG.torch()),
        records=12,
        inner_steps=4,
        zeta=10.0,
        learning_rate=1e-10,
        generator=RNG.child("weights").torch(),
    )
    z = (torch.stack(network.seen) - q.mean) / q.sd
    steps_taken, count = len(z), z.numel()
    assert steps_taken == 40
    z = z.double()
    assert abs(z.mean()) < 4 / math.sqrt(count)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / count)
    assert abs(z.pow(4).mean() - 3) < 4 * math.sqrt(96 / count)
    correlation = (z[1:] * z[:-1]).mean()
    assert abs(correlation) < 4 / math.sqrt(count - z.shape[1])


def test_the_noise_of_a_clients_turn_is_unit_noise_too(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SITES[0].client
    method = PFedBayes(iterations=5, inner_steps=4, learning_rate=1e-10)
    network = Recording(client)
    monkeypatch.setattr(Client, "network", property(lambda self: network))
    message = first_message(method, SITES)
    method.client_update(method.client_init(client), client, message, 0, RNG)
    v = Gaussian(message.arrays["weights"])
    z = ((torch.stack(network.seen) - v.mean) / v.sd).double()
    assert len(z) == 20
    # Subtracting and dividing by sd = 0.049 multiplies the rounding of w to at most 1e-5.
    assert abs(z.mean()) < 4 / math.sqrt(z.numel()) + 1e-5
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / z.numel()) + 1e-5


# What is scored, and the server


def test_predictions_average_softmax_over_draws() -> None:
    client = SITES[0].client
    method = PFedBayes(mc_samples=4)
    q = Gaussian.around(client.initial_weights(), -1.0)
    found = method.predict(Posterior(q.theta), client, client.train.x, RNG)
    generator = RNG.child("predict").torch()
    draws = [q.mean + q.sd * torch.randn(len(q.mean), generator=generator) for _ in range(4)]
    with torch.no_grad():
        outputs = torch.stack([forward(client, w, client.train.x) for w in draws])
    torch.testing.assert_close(found.probs, outputs.softmax(2).mean(0))
    assert (found.probs - outputs.mean(0).softmax(1)).abs().max() > 0.01
    assert found.epistemic.max() > 0.01


def test_scored_are_q_and_v() -> None:
    method, client = PFedBayes(iterations=2, inner_steps=1), SITES[0].client
    message = first_message(method, SITES)
    state = method.client_update(method.client_init(client), client, message, 0, RNG).state
    models = method.scored(state, client, message, RNG)
    assert list(models) == ["personal", "global"]
    assert torch.equal(models["personal"].theta, state.theta)
    assert torch.equal(models["global"].theta, message.arrays["weights"])


def test_the_first_round_starts_at_v_and_later_ones_at_the_clients_own_q() -> None:
    client = SITES[1].client
    method = PFedBayes(iterations=1, inner_steps=1, learning_rate=1e-10)
    own = method.client_init(client)
    message = first_message(method, SITES)
    for round_number, start in ((0, message.arrays["weights"]), (1, own.theta)):
        update = method.client_update(own, client, message, round_number, RNG)
        torch.testing.assert_close(update.state.theta, start, rtol=0, atol=1e-8)
        torch.testing.assert_close(update.message.arrays["weights"], message.arrays["weights"], rtol=0, atol=1e-8)
    assert not torch.equal(own.theta, message.arrays["weights"])


@given(st.floats(0.05, 2), st.integers(1, 3), st.integers(0, 1000))
def test_the_server_moves_by_beta_towards_the_uniform_mean(beta: float, count: int, seed: int) -> None:
    roster = roster_of(SITES)
    size = 2 * roster.network(0).size
    generator = torch.Generator().manual_seed(seed)
    v, *sent = torch.randn(count + 1, size, generator=generator)
    replies = {client: Message({"weights": w}) for client, w in enumerate(sent)}
    found = PFedBayes(beta=beta).server_update(Global(v), replies, roster, RNG).weights
    expected = (1 - beta) * v.double() + beta * torch.stack(sent).double().mean(0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_v_begins_around_the_first_clients_weights() -> None:
    method = PFedBayes(initial_rho=-4.0)
    v = Gaussian(method.server_init(roster_of(SITES)).weights)
    assert torch.equal(v.mean, SITES[0].client.initial_weights())
    torch.testing.assert_close(v.sd, torch.full_like(v.sd, math.log1p(math.exp(-4))))


def test_what_a_client_sends_is_the_localised_distribution_not_its_posterior() -> None:
    client, method = SITES[0].client, PFedBayes(iterations=4, inner_steps=3)
    message = first_message(method, SITES)
    update = method.client_update(method.client_init(client), client, message, 0, RNG)
    sent = update.message.arrays["weights"]
    v = message.arrays["weights"]
    q, w, _ = two_level(
        client.network,
        Gaussian(v),
        Gaussian(v),
        batches(client.train),
        records=12,
        inner_steps=3,
        zeta=10.0,
        learning_rate=1e-3,
        generator=RNG.child("weights").torch(),
    )
    assert torch.equal(sent, w.theta)
    assert torch.equal(update.state.theta, q.theta)
    assert (sent != v).float().mean() > 0.9
    assert (sent != update.state.theta).float().mean() > 0.9


def batches(records: Records) -> Iterator[Records]:
    return steps(records, 4, 5, RNG.child("order").torch())
