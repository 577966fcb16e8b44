"""FedPA: its recursion equals a dense solve, FedAvg is a limit, and on quadratics it finds the mode of the product."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation
from fedbnn.federation.parties import Client
from fedbnn.methods import FedPA
from fedbnn.methods.fedpa import delta, iterate_averages
from fedbnn.models.training import TrainingSettings, epochs
from tests.federation_sample import first_message, small_sites

RNG = Stream((0, "fedpa"))


def dense(start: Tensor, samples: Tensor, rho: float) -> Tensor:
    """By the covariance matrix itself."""
    count, size = samples.shape
    shrunk = 1 / (1 + (count - 1) * rho)
    sigma = shrunk * torch.eye(size, dtype=samples.dtype)
    if count > 1:
        sigma = sigma + (1 - shrunk) * torch.cov(samples.T)
    return torch.linalg.solve(sigma, start - samples.mean(0))


@given(
    count=st.integers(1, 9),
    size=st.integers(2, 12),
    rho=st.one_of(st.just(0.0), st.floats(1e-3, 30)),
    scale=st.floats(0.01, 10),
    seed=st.integers(0, 1000),
)
def test_the_recursion_is_the_dense_solve(count: int, size: int, rho: float, scale: float, seed: int) -> None:
    normal = torch.Generator().manual_seed(seed)
    start, *samples = scale * torch.randn(count + 1, size, dtype=torch.float64, generator=normal)
    stacked = torch.stack(samples)
    torch.testing.assert_close(delta(start, stacked, rho), dense(start, stacked, rho), rtol=1e-7, atol=1e-9)


def client_with(epochs_: int) -> Client:
    client = small_sites(1, models=("mlp",), batch_size=5)[0].client
    return dataclasses.replace(client, training=TrainingSettings(local_epochs=epochs_, warmup_epochs=1, batch_size=5))


@pytest.mark.parametrize("changes", [{"shrinkage": 0.0, "samples": 4}, {"shrinkage": 3.0, "samples": 1}])
def test_without_a_covariance_the_mean_of_the_samples_is_sent(changes: dict[str, float]) -> None:
    """As in FedAvg, of SGD's averaged iterates; with one sample from all steps but the burn-in."""
    client = client_with(4)  # 12 steps
    method = FedPA(burn_in=0.25, **changes)  # type: ignore[arg-type]
    message = first_message(method, small_sites(1, models=("mlp",)))
    update = method.client_update(method.client_init(client), client, message, 1, RNG)
    w = torch.nn.Parameter(message.arrays["weights"].clone())
    sgd, seen = torch.optim.SGD([w], lr=method.learning_rate, momentum=method.momentum), []
    for batch in epochs(client.train, 4, 5, RNG.child("order").torch()):
        client.network.weights.copy_(w.detach())
        client.network.gradient.zero_()
        batch.loss(client.network(batch.x)).backward()
        w.grad = client.network.gradient.clone()
        sgd.step()
        seen.append(w.detach().clone())
    expected = torch.stack(seen[-(8 if method.samples == 4 else 9) :]).mean(0)
    torch.testing.assert_close(update.message.arrays["weights"], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(update.state.weights, expected, rtol=1e-4, atol=1e-6)


def test_fewer_steps_than_samples_give_fewer_samples_and_burn_in_rounds_send_the_last_iterate() -> None:
    client, message = client_with(1), first_message(FedPA(), small_sites(1, models=("mlp",)))
    start = message.arrays["weights"]
    batches = list(epochs(client.train, 1, 5, RNG.child("order").torch()))
    settings = {"window": 1, "learning_rate": 0.01, "momentum": 0.9}
    samples, last, _ = iterate_averages(client.network, start, batches, burn_in=0, **settings)  # type: ignore[arg-type]
    assert len(samples) == len(batches) == 3
    assert torch.equal(samples[-1], last)
    many = FedPA(samples=50, burn_in=0.0)
    found = many.client_update(many.client_init(client), client, message, 1, RNG)
    torch.testing.assert_close(found.message.arrays["weights"], start - delta(start, samples, 0.01))
    burning = many.client_update(many.client_init(client), client, message, 0, RNG)
    torch.testing.assert_close(burning.message.arrays["weights"], last)


def test_its_steps_lead_to_the_mode_of_the_product_and_fedavgs_do_not() -> None:
    """Two Gaussian posteriors, of which samples are given: the fixed point is the mean weighted by precisions."""
    normal = RNG.child("quadratic").torch()
    size, count, rho = 4, 40, 1e3  # so large that hardly anything is shrunk
    few = []
    for _ in range(2):
        root, mean = torch.randn(size, size, generator=normal), torch.randn(size, generator=normal)
        few.append((mean + torch.randn(count, size, generator=normal) @ root).double())
    precisions = [torch.linalg.inv(torch.cov(x.T)) for x in few]
    weighted = [precision @ x.mean(0) for precision, x in zip(precisions, few, strict=True)]
    mode = torch.linalg.solve(precisions[0] + precisions[1], weighted[0] + weighted[1])
    one, other = (delta(mode, x, rho) for x in few)
    assert (one + other).norm() < 1e-2 * one.norm()
    one, other = (delta(mode, x, 0.0) for x in few)
    assert (one + other).norm() > 0.1 * one.norm()


def test_the_server_steps_by_beta_along_the_mean_delta() -> None:
    sites = small_sites(2, models=("mlp",))
    results = []
    for beta in (1.0, 0.25):
        federation = Federation(FedPA(beta=beta, burn_in_rounds=0, samples=2), sites)
        start = federation.server.tensors()["weights"].clone()
        federation.step(evaluate=False)
        results.append(federation.server.tensors()["weights"] - start)
    torch.testing.assert_close(results[1], 0.25 * results[0], rtol=1e-3, atol=1e-6)
