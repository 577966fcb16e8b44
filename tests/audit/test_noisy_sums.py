"""Other methods that send what is made of noisy sums: honest ones are not caught, and ways of cheating are."""

import os
import random

import numpy as np
import pytest

from fedbnn.audit.configuration import audit
from fedbnn.audit.trials import prepared_attack
from fedbnn.methods import noisy_sums
from fedbnn.privacy import discrete
from fedbnn.runs.config import load_config

NAMES = ("dp_fedsgd", "dp_scaffold")


def configured(name, **settings):
    return load_config(
        None,
        [
            f"method={name}",
            "rounds=1",
            "privacy.noise=continuous",
            "partition.clients=3",
            "partition.records_per_class=1",  # all but the canary have no gradient: more of them hide it no better
            "data.alignment=30",
            'models=[{name="mlp"}]',
            *(f"methods.{name}.{key}={value}" for key, value in settings.items()),
        ],
    )


@pytest.fixture(autouse=True)
def repeatable_noise(monkeypatch):
    monkeypatch.setattr(os, "urandom", np.random.default_rng(7).bytes)
    monkeypatch.setattr(discrete.secrets, "randbits", random.Random(7).getrandbits)
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.mark.parametrize("name", NAMES)
def test_a_canary_moves_what_is_sent_by_the_clip_and_nothing_else_does(name, monkeypatch, tmp_path):
    monkeypatch.setattr(noisy_sums, "with_noise", lambda total, *_: total)
    found = []
    for clip in (0.5, 1.0):
        _, attack = prepared_attack(configured(name, clip=clip, sampling_rate=1.0), facts=False)
        without, there = (np.array(attack.trial(one, tmp_path / f"{clip}{one}")[:2]) for one in (False, True))
        assert without == pytest.approx([0.0, 0.0], abs=1e-6)
        found.append(there)
    assert found[0][0] != 0
    assert found[1] == pytest.approx(2 * found[0], rel=0.02)


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("name", NAMES)
def test_honest_sums_are_not_caught(name, rate):
    found = audit(configured(name, sampling_rate=rate, epsilon=12.0), trials=200, confidence=0.9)
    assert not found.caught
    assert found.mu_lower > 0.4 * found.mu


@pytest.mark.parametrize("name", NAMES)
def test_sums_with_half_the_noise_are_caught(name, monkeypatch):
    honest = noisy_sums.with_noise
    monkeypatch.setattr(noisy_sums, "with_noise", lambda total, sd, *rest: honest(total, 0.5 * sd, *rest))
    assert audit(configured(name, sampling_rate=1.0, epsilon=12.0), trials=200, confidence=0.9).caught


@pytest.mark.parametrize("name", NAMES)
def test_unclipped_gradients_are_caught(name, monkeypatch):
    honest = noisy_sums.clipped_grid_sum
    monkeypatch.setattr(noisy_sums, "clipped_grid_sum", lambda network, x, y, clip: honest(network, x, y, 2 * clip))
    assert audit(configured(name, epsilon=12.0, sampling_rate=1.0), trials=400, confidence=0.9).caught
