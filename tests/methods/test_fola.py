"""FOLA: products of Gaussians, the Fisher information, and a prior that pulls."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal
from torch.nn import functional

from fedbnn.base.randomness import Stream
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods import FOLA
from fedbnn.methods import fola as module
from fedbnn.methods.fola import fisher, product
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, TrainingSettings, epochs
from tests.federation_sample import first_message, small_sites, unequal, with_client

RNG = Stream((0, "test"))
SITES = unequal(small_sites(3, models=("mlp",)), (12, 7, 4))

sizes = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 10**6))


def gaussians(clients: int, weights: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random means, precisions over four orders of magnitude, and powers; in double precision."""
    generator = torch.Generator().manual_seed(seed)
    means, exponents = torch.randn(2, clients, weights, generator=generator, dtype=torch.float64)
    powers = torch.rand(clients, generator=generator, dtype=torch.float64) + 0.1
    return means, 10**exponents, powers


# The product


@given(sizes)
def test_the_product_is_proportional_to_the_densities_powers(size: tuple[int, int, int]) -> None:
    means, precisions, powers = gaussians(*size)
    mean, precision = product(means, precisions, powers)
    x = mean + torch.linspace(-3, 3, 13, dtype=torch.float64)[:, None] / precision.sqrt()
    logs = (powers[:, None, None] * Normal(means[:, None], precisions[:, None].rsqrt()).log_prob(x)).sum(0)
    difference = logs - Normal(mean, precision.rsqrt()).log_prob(x)
    torch.testing.assert_close(difference, difference[:1].expand_as(difference), rtol=1e-9, atol=1e-9)


def test_the_products_moments_by_integration() -> None:
    means = torch.tensor([[0.3], [-1.0], [2.0]], dtype=torch.float64)
    precisions = torch.tensor([[2.0], [0.5], [4.0]], dtype=torch.float64)
    powers = torch.tensor([0.5, 1.0, 0.25], dtype=torch.float64)
    x = torch.linspace(-15, 15, 30_001, dtype=torch.float64)
    density = torch.ones_like(x)
    for m, p, a in zip(means, precisions, powers, strict=True):
        density = density * (torch.exp(-p / 2 * (x - m).square()) * (p / (2 * math.pi)).sqrt()) ** a
    density = density / torch.trapezoid(density, x)
    centre = torch.trapezoid(x * density, x)
    variance = torch.trapezoid((x - centre).square() * density, x)
    mean, precision = product(means, precisions, powers)
    torch.testing.assert_close(mean, centre[None], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(1 / precision, variance[None], rtol=1e-9, atol=1e-9)


def orthogonal_design(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Columns at right angles, of different lengths: the Gram matrix is diagonal."""
    q, _ = torch.linalg.qr(torch.randn(rows, columns, generator=generator, dtype=torch.float64))
    return q * (0.5 + 3 * torch.rand(columns, generator=generator, dtype=torch.float64))


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10**6), st.booleans())
def test_the_product_of_exact_posteriors_is_the_posterior_of_all_data(
    clients: int, columns: int, seed: int, powered: bool
) -> None:
    """Linear regression with a flat prior; with powers a_i, of data in which a record of client i counts a_i times."""
    generator = torch.Generator().manual_seed(seed)
    noise_sd = 0.3
    powers = torch.rand(clients, generator=generator, dtype=torch.float64) + 0.1 if powered else torch.ones(clients)
    truth = torch.randn(columns, generator=generator, dtype=torch.float64)
    means, precisions, all_x, all_y = [], [], [], []
    for power in powers:
        x = orthogonal_design(columns + 4, columns, generator)
        y = x @ truth + noise_sd * torch.randn(len(x), generator=generator, dtype=torch.float64)
        covariance = noise_sd**2 * torch.linalg.inv(x.T @ x)
        means.append(torch.linalg.lstsq(x, y[:, None]).solution[:, 0])
        precisions.append(1 / covariance.diagonal())
        all_x.append(power.sqrt() * x)
        all_y.append(power.sqrt() * y)
    mean, precision = product(torch.stack(means), torch.stack(precisions), powers.double())
    x, y = torch.cat(all_x), torch.cat(all_y)
    torch.testing.assert_close(mean, torch.linalg.lstsq(x, y[:, None]).solution[:, 0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(torch.diag(precision), x.T @ x / noise_sd**2, rtol=1e-8, atol=1e-8)


def test_where_nobody_knows_anything_the_mean_is_plain() -> None:
    means = torch.tensor([[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]])
    precisions = torch.tensor([[0.0, 2.0, 1e-30], [0.0, 2.0, 0.0]])
    mean, precision = product(means, precisions, torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(mean, torch.tensor([2.0, 2.0, 2.0]))
    torch.testing.assert_close(precision, torch.tensor([0.0, 2.0, 0.0]))
    mean, precision = product(means, torch.zeros(2, 3), torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(mean, torch.full((3,), 2.0))
    assert precision.eq(0).all()


def test_who_alone_knows_a_weight_decides_it() -> None:
    means, precisions = torch.tensor([[1.0, 7.0], [5.0, 9.0]]), torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    mean, precision = product(means, precisions, torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(mean, torch.tensor([1.0, 9.0]))
    torch.testing.assert_close(precision, torch.tensor([1.5, 1.0]))


@given(st.lists(st.integers(1, 400), min_size=3, max_size=3), st.integers(0, 1000))
def test_the_server_multiplies_by_shares_of_records(counts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    roster = roster_of(SITES)
    state = FOLA().server_init(roster)
    means, precisions = torch.randn(2, 3, len(state.weights), generator=generator).unbind()
    precisions = precisions.exp()
    replies = {
        c: Message({"weights": means[c], "precision": precisions[c], "records": torch.tensor([float(counts[c])])})
        for c in range(3)
    }
    found = FOLA().server_update(state, replies, roster, RNG)
    a = torch.tensor(counts, dtype=torch.float64)[:, None] / sum(counts)
    precision = (a * precisions).sum(0)
    torch.testing.assert_close(found.precision.double(), precision, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        found.weights.double(), (a * precisions * means).sum(0) / precision, rtol=1e-4, atol=1e-5
    )
    other_way = FOLA().server_update(state, dict(reversed(replies.items())), roster, RNG)
    torch.testing.assert_close(other_way.weights, found.weights, rtol=1e-4, atol=1e-5)


def test_a_negative_precision_counts_as_none() -> None:
    roster = roster_of(SITES)
    state = FOLA().server_init(roster)
    ones = torch.ones(len(state.weights))
    replies = {
        0: Message({"weights": ones, "precision": ones, "records": torch.ones(1)}),
        1: Message({"weights": -9 * ones, "precision": -50 * ones, "records": torch.ones(1)}),
    }
    found = FOLA().server_update(state, replies, roster, RNG)
    assert found.weights.eq(1).all()
    assert found.precision.eq(0.5).all()


# The Fisher information


def autograd_fisher(network: FlatNetwork, weights: Tensor, batches: list[Records], records: int) -> Tensor:
    """sum_b (b / n) g_b^2 with a gradient of the whole flat vector at a time."""
    total = torch.zeros_like(weights)
    for batch in batches:
        network.weights.copy_(weights)
        loss = functional.cross_entropy(network.module(batch.x), batch.y)
        gradient = torch.autograd.grad(loss, list(network.module.parameters()))
        g = torch.cat([part.flatten() for part in gradient])
        total += len(batch) / records * g.square()
    return total


@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_the_fisher_information_is_a_loop_by_autograd(batch_size: int) -> None:
    client = SITES[0].client
    weights = client.initial_weights()
    batches = list(epochs(client.train, 1, batch_size, RNG.torch()))
    assert sum(len(batch) for batch in batches) == 12
    expected = autograd_fisher(client.network, weights, batches, 12)
    found = fisher(client.network, weights, iter(batches), 12)
    assert expected.max() > 1e-4
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


def test_with_single_records_it_is_the_empirical_fisher_information() -> None:
    """The mean of squared gradients of single records, as torch.func has them."""
    client = SITES[0].client
    weights, records = client.initial_weights(), client.train
    found = fisher(client.network, weights, epochs(records, 1, 1, RNG.torch()), len(records))
    client.network.weights.copy_(weights)
    parameters = {name: p.detach() for name, p in client.network.module.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = torch.func.functional_call(client.network.module, values, (x[None],))
        return functional.cross_entropy(logits, y[None])

    per_record = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, records.x, records.y)
    expected = torch.cat([g.flatten(1).square().mean(0) for g in per_record.values()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


def small(**training: Any) -> list[Site]:
    """Unequal clients whose minibatches are all of their records, so that no order matters."""
    settings = TrainingSettings(**{"local_epochs": 2, "warmup_epochs": 2, "batch_size": 16} | training)
    return [with_client(site, training=settings) for site in SITES]


def test_the_precision_grows_by_one_fisher_information_a_round() -> None:
    sites = small()
    federation = Federation(FOLA(learning_rate=2e-3), sites)
    before = federation.server.tensors()["precision"]
    assert before.eq(0).all()
    for _ in range(3):
        federation.step(evaluate=False)
        grown = federation.server.tensors()["precision"]
        expected = before.clone()
        for site in sites:
            # Each client's state holds the weights it reached, where it took its Fisher information.
            weights = federation.engine._host.states[site.client.index].weights  # type: ignore[attr-defined]
            share = len(site.client.train) / 23
            expected += share * autograd_fisher(
                site.client.network, weights, [site.client.train], len(site.client.train)
            )
        torch.testing.assert_close(grown, expected, rtol=1e-3, atol=1e-7)
        assert (grown >= before * (1 - 1e-6)).all()
        assert grown.sum() > before.sum()
        before = grown


# The prior


def trained(client: Client, omega: Tensor, theta: Tensor, round_number: int, method: FOLA) -> tuple[Tensor, Tensor]:
    """The weights reached, and the gradient of the last step, pull included."""
    seen: list[Tensor] = []

    def spy(network: FlatNetwork, *arguments: Any) -> Tensor:
        seen.append(network.gradient.clone())
        return fisher(network, *arguments)

    message = Message({"weights": theta, "precision": omega})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "fisher", spy)
        update = method.client_update(method.client_init(client), client, message, round_number, RNG)
    [gradient] = seen
    return update.state.weights, gradient


@pytest.mark.parametrize("round_number", [1, 2, 5])
def test_the_priors_gradient(round_number: int) -> None:
    """It is prior_weight / r * Omega * (w - theta) with w as it is in that step, so it is not zero."""
    one, two = small(local_epochs=1)[0].client, small(local_epochs=2)[0].client
    theta = first_message(FOLA(), SITES).arrays["weights"]
    omega = torch.rand(len(theta), generator=RNG.torch())
    without, pulled = FOLA(prior_weight=0.0), FOLA(prior_weight=30.0)
    # The first step starts at theta, where the prior has no gradient: both take the same one, to w.
    w, _ = trained(one, omega, theta, round_number, pulled)
    assert torch.equal(trained(one, omega, theta, round_number, without)[0], w)
    assert not torch.equal(w, theta)
    _, free = trained(two, omega, theta, round_number, without)
    _, held = trained(two, omega, theta, round_number, pulled)
    expected = 30 / round_number * omega * (w - theta)
    assert expected.norm() > 0.01 * free.norm()
    torch.testing.assert_close(held - free, expected, rtol=1e-3, atol=1e-6)


def test_a_huge_prior_weight_keeps_the_client_at_theta() -> None:
    client = small(local_epochs=60)[0].client
    theta = first_message(FOLA(), SITES).arrays["weights"]
    omega = torch.ones_like(theta)
    rate = 1e-3
    free, held = (
        trained(client, omega, theta, 1, FOLA(learning_rate=rate, prior_weight=weight))[0] - theta
        for weight in (0.0, 1e6)
    )
    assert held.abs().max() < 2 * rate  # Adam's first step is one learning rate, whatever the loss
    assert held.norm() < 0.1 * free.norm()


def test_the_warm_up_has_no_prior() -> None:
    sites = small()
    client, message = sites[0].client, first_message(FOLA(), sites)
    assert message.arrays["precision"].eq(0).all()
    reached = [
        method.client_update(method.client_init(client), client, message, 0, RNG).state.weights
        for method in (FOLA(prior_weight=0.0), FOLA(prior_weight=1e6))
    ]
    assert torch.equal(*reached)
