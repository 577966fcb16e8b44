"""SGLD goes through a posterior that quadrature knows, and is gradient descent without its noise."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbnn.models.langevin import Langevin
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Pull, Records, descend

WEIGHTS, EACH, ONES = 400, 8, 6  # so many weights, each with 8 records of its own of which 6 are of class 1


class OneEach(nn.Module):
    """Two classes, of which the second has the weight of the record's place as its logit."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.weights
        return torch.stack([torch.zeros_like(z), z], 1)


RECORDS = Records(torch.eye(WEIGHTS).repeat_interleave(EACH, 0), (torch.arange(EACH) < ONES).long().repeat(WEIGHTS))


def by_quadrature(temperature: float) -> tuple[float, float]:
    """Mean and variance of p(w) prod p(y | w), prior N(0, 1), to the power 1 / temperature."""
    w = np.linspace(-12, 12, 20001)
    log = ONES * w - EACH * np.log1p(np.exp(w)) - w**2 / 2
    p = np.exp((log - log.max()) / temperature)
    p /= p.sum()
    return float(p @ w), float(p @ w**2 - (p @ w) ** 2)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_it_samples_a_known_posterior(temperature: float) -> None:
    network, n = FlatNetwork(OneEach, 0), len(RECORDS)
    chain = Langevin(rate=0.02 * n, weight_decay=1 / n, temperature=temperature)
    seen: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)
    batches = iter([RECORDS] * 1200)
    chain.walk(
        network,
        torch.zeros(WEIGHTS),
        batches,
        records=n,
        generator=generator,
        visit=lambda w: seen.append(w.clone()),
    )
    after = torch.stack(seen[300:]).double()
    mean, variance = by_quadrature(temperature)
    assert float(after.mean()) == pytest.approx(mean, abs=0.02)
    assert float(after.var()) == pytest.approx(variance, rel=0.06)


def test_without_noise_it_is_gradient_descent_bit_for_bit() -> None:
    network = FlatNetwork(OneEach, 0)
    start = torch.randn(WEIGHTS, generator=torch.Generator().manual_seed(1))
    batches = [RECORDS.take(torch.arange(k, k + 50)) for k in range(0, 500, 50)]
    chain = Langevin(rate=3.0, weight_decay=0.1, temperature=0.0)
    found, loss = chain.walk(network, start, iter(batches), records=len(RECORDS), generator=torch.Generator())
    expected, last, _ = descend(network, start, iter(batches), rate=1.5, pull=Pull(torch.zeros(WEIGHTS), 0.1))
    assert torch.equal(found, expected)
    assert loss == last
    assert not torch.equal(found, start)
