"""The head's posterior against the exact one, drawn by Hamiltonian Monte Carlo from the objective as it is written."""

import math
from collections.abc import Callable

import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.methods.head import Head, own_offset
from fedbnn.models.bayes import Prediction
from tests.methods.test_head import clients_of

SD, TRUST = 2.0, 0.2


def hmc(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]], precision: Tensor, shape: tuple[int, int], draws: int
) -> tuple[Tensor, float]:
    """Draws from exp(-loss), given as its value and its slope, and the share of proposals taken (Neal 2011).

    Moves in coordinates in which `precision`, a guess of the curvature of every column, is round.
    """
    generator = torch.Generator().manual_seed(0)
    back = torch.linalg.inv(torch.linalg.cholesky(precision)).T

    def energy(at: Tensor) -> tuple[float, Tensor]:
        value, slope = loss(back @ at)
        return float(value), back.T @ slope

    at, kept, taken = torch.zeros(shape, dtype=torch.float64), [], 0
    value, slope = energy(at)
    for _ in range(draws):
        momentum = torch.randn(shape, generator=generator, dtype=torch.float64)
        step = 0.2 * (0.8 + 0.4 * float(torch.rand((), generator=generator)))
        moved, speed, new_value, new_slope = at, momentum, value, slope
        for _ in range(8):
            speed = speed - step / 2 * new_slope
            moved = moved + step * speed
            new_value, new_slope = energy(moved)
            speed = speed - step / 2 * new_slope
        lost = new_value - value + float(speed.square().sum() - momentum.square().sum()) / 2
        if math.log(float(torch.rand((), generator=generator))) < -lost:
            at, value, slope, taken = moved, new_value, new_slope, taken + 1
        kept.append(back @ at)
    return torch.stack(kept[draws // 5 :]), taken / draws


def with_one(z: Tensor) -> Tensor:
    return torch.cat([z, torch.ones(len(z), 1, dtype=torch.float64)], 1)


def test_it_is_as_sure_as_the_exact_posterior_and_unsure_of_the_same_records() -> None:
    """Under the same prior: the penalty for all weights, here also for the bias."""
    [client] = clients_of([(range(10), 60)], alignment=25)
    head = Head.of(client, SD, TRUST)
    z, labels = with_one(head.features(client.train.x)), one_hot(client.train.y, 10).double()
    offset, penalty = own_offset(client), head.penalty

    def loss(weights: Tensor) -> tuple[Tensor, Tensor]:
        logs = (z @ weights + offset).log_softmax(1)
        value = -(labels * logs).sum() + penalty / 2 * weights.square().sum()
        return value, z.T @ (logs.exp() - labels) + penalty * weights

    with repeatable(Stream((0, "test"))):
        precision = penalty * torch.eye(z.shape[1], dtype=torch.float64) + 0.1 * z.T @ z
        drawn, taken = hmc(loss, precision, (z.shape[1], 10), 800)
    assert 0.6 < taken < 1
    [other] = clients_of([(range(10), 150)], alignment=25)
    x = other.train.x
    exact = Prediction.from_draws(torch.einsum("nk,dkc->dnc", with_one(head.features(x)), drawn).softmax(2))
    found = Prediction.from_draws(head.draws(head.fit(None), 0.0, x, 400, Stream((0, "test"))).softmax(2))
    assert float((found.probs - exact.probs).abs().sum(1).mean()) / 2 < 0.1  # total variation
    assert spearmanr(found.epistemic, exact.epistemic).statistic > 0.8
    assert 0.5 < float(found.epistemic.mean() / exact.epistemic.mean()) < 2
