"""The Bayesian linear head of FedBNN in regression, against closed forms and one head fitted to all records."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from fedbnn import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation
from fedbnn.federation.sites import make_sites
from fedbnn.methods import FedBNN
from fedbnn.methods.gaussian_consensus import join_gaussians
from fedbnn.methods.regression_head import SD, RegressionHead, evidence_noise, ridge
from fedbnn.models.regression import Mixture
from fedbnn.models.softmax import with_one
from tests.regression_sample import NOISE, SCALE, SMALL, dealt, linear_data, linear_sites


def some(n: int, dims: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, dims, generator=g).double(), torch.randn(n, 1, generator=g).double()


def test_the_head_without_a_consensus_is_gaussian_process_regression() -> None:
    """z W at new points = k (K + s^2)^-1 y, with the kernel z P^-1 z^T."""
    (z, y), (new, _) = some(9, 4), some(5, 4, seed=1)
    prior = torch.tensor([2.0, 1.0, 3.0, 0.5, 0.1], dtype=torch.float64)
    weights = ridge(z, y, z[:0], y[:0], 0.0, 0.3, prior)
    rows, at = with_one(z), with_one(new)
    kernel = rows / prior @ rows.T + 0.3 * torch.eye(9)
    torch.testing.assert_close(at @ weights, at / prior @ rows.T @ torch.linalg.solve(kernel, y))


def test_points_of_a_consensus_count_as_records() -> None:
    (z, y), (points, said) = some(9, 4), some(6, 4, seed=1)
    prior = torch.ones(5, dtype=torch.float64)
    together = ridge(torch.cat([z, points]), torch.cat([y, said]), z[:0], y[:0], 0.0, 0.3, prior)
    torch.testing.assert_close(ridge(z, y, points, said, 6.0, 0.3, prior), together)


@pytest.mark.parametrize(("n", "dims"), [(30, 4), (8, 20)])
def test_the_noise_is_where_the_evidence_is_greatest(n: int, dims: int) -> None:
    z, y = some(n, dims, seed=2)
    z, prior = with_one(z), torch.linspace(20, 60, dims + 1).double()
    found = evidence_noise(z, y[:, 0], prior)

    def evidence(noise: float) -> float:
        return float(
            MultivariateNormal(torch.zeros(n).double(), z / prior @ z.T + noise * torch.eye(n)).log_prob(y[:, 0])
        )

    assert evidence(found) >= max(evidence(found * step) for step in (0.5, 0.9, 1.1, 2.0))
    assert evidence_noise(z[:0], y[:0, 0], prior) == 1.0


def test_draws_are_of_the_closed_form_posterior() -> None:
    site = linear_sites(rounds=1)[0]
    head = RegressionHead.of(site.client, SD, 0.2)
    consensus = head.speak(None, None)
    weights, noise = head.fit(consensus), head.noise_with(consensus)
    x = site.client.train.x[:4]
    drawn = head.posterior(weights, head.records, noise, x, 4000, Stream((0,)))
    z, own, at = (with_one(one) for one in (head.features(x), head._own[0], head.features.alignment))
    precision = (own.T @ own + at.T @ at * (head.records / len(at))) / noise + head._prior().diag()
    expected, variance = (z @ weights)[:, 0], (z @ torch.linalg.solve(precision, z.T)).diagonal()
    novel = 1 - 1 / head.standard.novelty(head.standard(x)).clamp_min(1.0)
    variance = variance + novel
    assert ((drawn.mean(0) - expected).abs() < 5 * (variance / 4000).sqrt()).all()
    assert drawn.var(0).tolist() == pytest.approx(variance.tolist(), rel=0.12)


def test_heads_find_together_what_one_head_of_all_records_says() -> None:
    """By outputs on the alignment set alone; clients have other numbers of records, and other noise."""
    data = linear_data(records=420)
    sites = make_sites(dealt(data, clients=3, alignment=330), [SMALL], rounds=1)
    noisy = replace(
        sites[2].client.train, y=sites[2].client.train.y + torch.linspace(-2, 2, len(sites[2].client.train))
    )
    clients = [sites[0].client, replace(sites[1].client, train=sites[1].client.train.take(torch.arange(12)))]
    clients.append(replace(sites[2].client, train=noisy))
    heads = [RegressionHead.of(client, SD, 0.2) for client in clients]
    assert len({head.noise for head in heads}) > 1
    sent: list[torch.Tensor | None] = [None] * 3
    consensus = None
    rows = torch.cat([with_one(head._own[0]) / head.noise**0.5 for head in heads])
    targets = torch.cat([head._own[1] / head.noise**0.5 for head in heads])
    weights = torch.linalg.solve(rows.T @ rows + heads[0]._prior().diag(), rows.T @ targets)
    pooled = (with_one(heads[0].features.alignment) @ weights)[:, 0]
    distances: list[float] = []
    for _ in range(40):
        sent = [head.speak(consensus, one) for head, one in zip(heads, sent, strict=True)]
        consensus = join_gaussians(torch.stack([one for one in sent if one is not None]), "mean_logits")
        distances.append(float((consensus[:, 0].double() - pooled).abs().max()))
    assert consensus is not None
    apart = (consensus[:, 0].double() - pooled).abs().max()
    alone = (sent[1][:, 0].double() - pooled).abs().max() if sent[1] is not None else torch.inf
    assert apart < 0.08 * pooled.std()
    assert (consensus[:, 0].double() - pooled).square().mean().sqrt() < 0.02 * pooled.std()
    assert distances[-1] < 0.2 * distances[0]
    assert apart < alone  # a site is not nothing: who holds little is far from the others
    shares = torch.tensor([1 / head.noise for head in heads])
    assert float(consensus[0, 1].exp()) == pytest.approx(float(1 / shares.mean()), rel=1e-5)


def test_the_head_alone_finds_line_and_noise() -> None:
    sites = linear_sites(600, 3, tests=800, rounds=4)
    federation = Federation(FedBNN(network_weight=0.0, network_every=4, prior_steps=1), sites, seed=0)
    federation.run(4)
    said = federation.predict(0, sites[0].evaluation.x)
    assert isinstance(said, Mixture)
    assert float(said.aleatoric.sqrt().mean()) == pytest.approx(NOISE, rel=0.15)
    rmse = float((said.mean - sites[0].evaluation.y).square().mean().sqrt())
    assert rmse == pytest.approx(NOISE, rel=0.12)
    assert np.isclose(float(said.mean.mean()), SCALE.mean, atol=10)


def test_head_and_network_are_joined_by_precision() -> None:
    sites = linear_sites(rounds=1)
    method = FedBNN(prior_steps=2, mc_samples=4)
    federation = Federation(method, sites, seed=0)
    federation.run(1)
    x = sites[0].evaluation.x[:6]
    parts = []
    for weights in ({"network_weight": 0.0}, {"head_weight": 0.0}, {}):
        federation.engine._host.method = replace(method, **weights)
        parts.append(federation.predict(0, x))
    head, network, both = parts
    a, b = 0.5 / head.variances, 0.5 / network.variances
    torch.testing.assert_close(both.variances, 1 / (a + b), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both.means, (a * head.means + b * network.means) / (a + b), rtol=1e-4, atol=1e-3)


def test_somebody_has_to_answer() -> None:
    with pytest.raises(UserError, match="one of them must be above 0 in regression"):
        FedBNN(head_weight=0.0, network_weight=0.0).check_client(linear_sites(rounds=1)[0].client)
