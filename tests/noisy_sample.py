"""What tests of methods with noisy sums share: their sites, gradients by other means, distributions and accountants."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import kstest, norm
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedbnn.federation.engines import Site
from fedbnn.federation.parties import Client
from tests.federation_sample import small_sites, with_client

SITES = small_sites(4, models=("mlp",))
SIZE = 9610  # weights of the network of these clients
RECORDS = 12  # of each of them


def planned(rounds: int, sites: Sequence[Site] | None = None) -> list[Site]:
    """The sites of a federation for which so many rounds are planned."""
    return [with_client(site, rounds=rounds) for site in sites or SITES]


def clipped_gradients(client: Client, weights: Tensor, index: Tensor, clip: float) -> Tensor:
    """The sum over these records of their gradients, each cut to `clip`, by torch.func."""
    network, offset, values = client.network, 0, {}
    for name, parameter in network.module.named_parameters():
        values[name] = weights[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()

    def loss(at: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(network.module, at, (x[None],)), y[None])

    each = vmap(grad(loss), (None, 0, 0))(values, client.train.x[index], client.train.y[index])
    rows = torch.cat([g.flatten(1) for g in each.values()], 1)
    return (rows * (clip / rows.norm(dim=1, keepdim=True)).clamp_max(1)).sum(0)


def assert_normal(noise: Tensor, sd: float) -> None:
    """Independent draws of N(0, sd^2), within four standard errors."""
    z = noise.double() / sd
    assert abs(z.mean()) < 4 / math.sqrt(len(z))
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / len(z))
    assert kstest(z.numpy(), norm.cdf).pvalue > 1e-3


def independent_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """By dp-accounting's own accountant of privacy loss distributions."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


def gaussian_epsilon(noise: float, releases: int, delta: float) -> float:
    """The epsilon of unsampled releases, from Balle and Wang's formula by another root finder."""
    mu = math.sqrt(releases) / noise

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 0, 100, xtol=1e-10))


def with_ledger(client: Client, folder: Path, **changes: Any) -> Client:
    return dataclasses.replace(client, ledgers=folder, **changes)
