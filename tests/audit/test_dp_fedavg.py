"""DP-FedAvg's claim is the accountant's, honest clients and servers are not caught, and known ways of cheating are."""

import math
import os
import random

import numpy as np
import pytest
from scipy.special import ndtr

from fedbnn.audit.claims import claim_of, subsampled_mu
from fedbnn.audit.configuration import audit
from fedbnn.audit.trials import prepared_attack
from fedbnn.methods import dp_fedavg, noisy_sums
from fedbnn.privacy import discrete
from fedbnn.privacy.accountant import gaussian_epsilon, gaussian_mu, subsampled_epsilon
from fedbnn.runs.config import load_config

SMALL = (
    "method=dp_fedavg",
    "rounds=1",
    "methods.dp_fedavg.steps=2",
    "privacy.noise=continuous",
    "partition.clients=3",
    "partition.records_per_class=1",  # all but the canary have no gradient: more of them hide it no better
    "data.alignment=30",
    'models=[{name="mlp"}]',
)


def configured(**settings):
    changes = [f"methods.dp_fedavg.{name}={value}" for name, value in settings.items()]
    return load_config(None, [*SMALL, *changes])


@pytest.fixture(autouse=True)
def repeatable_noise(monkeypatch):
    monkeypatch.setattr(os, "urandom", np.random.default_rng(7).bytes)
    monkeypatch.setattr(discrete.secrets, "randbits", random.Random(7).getrandbits)
    monkeypatch.setattr(os, "fsync", lambda file: None)


def claimed(config):
    prepared, _ = prepared_attack(config, facts=False)
    return claim_of(config.chosen(), prepared.sites[0].client)


# ---- what is claimed ----


def test_the_claim_of_all_records_in_every_step_is_gaussian():
    claim = claimed(configured(sampling_rate=1.0, epsilon=5.0))
    assert (claim.releases, claim.gaussian) == (4, True)
    assert claim.mu == gaussian_mu(5.0, 1e-5)
    assert claim.epsilon_of(claim.mu) == pytest.approx(5.0, rel=1e-6)


def test_one_subsampled_step_by_hand():
    """Of N(0, z^2) and (1 - q) N(0, z^2) + q N(1, z^2), the total variation is q times the Gaussian's."""
    apart = 0.3 * (2 * ndtr(1 / 2 / 2) - 1)
    assert 2 * ndtr(subsampled_mu(2.0, 0.3, 1) / 2) - 1 == pytest.approx(apart, rel=1e-3)


def test_many_subsampled_steps_are_nearly_gaussian():
    """mu = q sqrt(T (e^(1 / z^2) - 1)) in the limit (Bu, Dong, Long, Su 2020)."""
    assert subsampled_mu(10.0, 0.1, 5000) == pytest.approx(0.1 * math.sqrt(5000 * math.expm1(0.01)), rel=0.01)


def test_the_epsilon_of_a_bound_is_that_of_less_noise():
    claim = claimed(configured(sampling_rate=0.5))
    assert not claim.gaussian
    assert claim.mu < gaussian_mu(3.0, 1e-5)
    assert claim.epsilon_of(claim.mu) == pytest.approx(3.0, rel=0.01)
    assert claim.epsilon_of(subsampled_mu(1.5, 0.5, 4)) == pytest.approx(
        subsampled_epsilon(1.5, 0.5, 4, 1e-5), rel=0.01
    )
    assert claim.epsilon_of(0.0) == 0.0


def test_the_claim_of_clients():
    claim = claimed(configured(level="user"))
    assert (claim.releases, claim.mu) == (2, gaussian_mu(3.0, 1e-5))
    assert claim.epsilon_of(1.0) == gaussian_epsilon(1.0, 1e-5)


# ---- what an attack sees ----


def test_a_canary_moves_every_step_by_the_clip(monkeypatch, tmp_path):
    """Along a known direction, and nothing else moves; sampled by half, in the steps that drew it."""
    monkeypatch.setattr(noisy_sums, "with_noise", lambda total, *_: total)

    def moved(**settings):
        config = configured(**settings)
        _, attack = prepared_attack(config, facts=False)
        seen = [np.array(attack.trial(there, tmp_path / f"{settings}{there}")[:2]) for there in (False, True)]
        assert seen[0] == pytest.approx([0.0, 0.0], abs=1e-6)
        return seen[1]

    once = moved(sampling_rate=1.0, clip=0.5, steps=1)
    assert moved(sampling_rate=1.0, clip=0.5, steps=5) == pytest.approx(5 * once, rel=0.02)
    assert moved(sampling_rate=1.0, clip=1.0, steps=5) == pytest.approx(10 * once, rel=0.02)
    drawn = moved(sampling_rate=0.5, clip=0.5, steps=5) / (2 * once)
    assert drawn == pytest.approx(np.round(drawn), rel=0.02)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_honest_steps_are_not_caught(rate):
    found = audit(configured(sampling_rate=rate, epsilon=12.0), trials=200, confidence=0.9)
    assert not found.caught
    assert found.mu_lower > 0.4 * found.mu


def test_a_denominator_that_depends_on_the_records_is_caught(monkeypatch):
    honest = dp_fedavg.DPFedAvg.client_update

    def update(self, state, client, message, round_number, rng):
        done = honest(self, state, client, message, round_number, rng)
        start = message.arrays["weights"]
        moved = (done.message.arrays["weights"] - start) * (30 / (len(client.train) + 25))  # of 30, or of 31
        return done._replace(message=type(done.message)({"weights": start + moved}))

    monkeypatch.setattr(dp_fedavg.DPFedAvg, "client_update", update)
    assert audit(configured(epsilon=1.0), trials=200, confidence=0.9).caught


def half_the_noise(monkeypatch):
    honest = dp_fedavg.with_noise
    for module in (noisy_sums, dp_fedavg):  # of records, and of the server
        monkeypatch.setattr(module, "with_noise", lambda total, sd, *rest: honest(total, 0.5 * sd, *rest))


def test_steps_with_half_the_noise_are_caught(monkeypatch):
    half_the_noise(monkeypatch)
    assert audit(configured(epsilon=12.0), trials=200, confidence=0.9).caught


def test_unclipped_gradients_are_caught(monkeypatch):
    honest = noisy_sums.clipped_grid_sum
    monkeypatch.setattr(noisy_sums, "clipped_grid_sum", lambda network, x, y, clip: honest(network, x, y, 2 * clip))
    assert audit(configured(epsilon=12.0, sampling_rate=1.0), trials=400, confidence=0.9).caught


def test_an_honest_server_is_not_caught():
    found = audit(configured(level="user", epsilon=12.0), trials=400, confidence=0.9)
    assert not found.caught
    assert found.mu_lower > 0.6 * found.mu


def test_a_server_with_half_the_noise_is_caught(monkeypatch):
    half_the_noise(monkeypatch)
    assert audit(configured(level="user", epsilon=12.0), trials=200, confidence=0.9).caught


def test_a_server_that_divides_by_who_replied_is_caught(monkeypatch):
    honest = dp_fedavg.DPFedAvg.server_update

    def update(self, state, replies, roster, rng):
        done = honest(self, state, replies, roster, rng)
        return type(done)(state.weights + (done.weights - state.weights) * roster.clients / len(replies))

    monkeypatch.setattr(dp_fedavg.DPFedAvg, "server_update", update)
    assert audit(configured(level="user", epsilon=1.0), trials=100, confidence=0.9).caught


def test_updates_of_a_server_that_does_not_clip_are_caught(monkeypatch):
    monkeypatch.setattr(dp_fedavg, "clip_update", lambda update, clip: update)
    assert audit(configured(level="user", epsilon=1.0), trials=100, confidence=0.9).caught
