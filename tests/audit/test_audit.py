"""The audit is sound (honest clients are never caught), near tight, and catches every way of cheating that we know."""

import json
import math
import os
import random
import tempfile
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri

from fedbnn.audit.attacks import attack_on
from fedbnn.audit.bounds import discriminant, mu_lower_bound, upper_limit
from fedbnn.audit.configuration import audit
from fedbnn.base.errors import UserError
from fedbnn.federation.message import Message
from fedbnn.methods.exchange import Exchange
from fedbnn.privacy import (
    accountant,
    discrete,
    head,
    ledger,
    plan,
    release_gate,
    spending,
)
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import Prepared

# ---- the bound ----


def gaussian_worlds(mu, trials, rng):
    return rng.normal(size=(trials, 1)), rng.normal(size=(trials, 1)) + mu


@pytest.mark.parametrize(("events", "trials"), [(0, 1), (0, 50), (3, 50), (49, 50), (50, 50)])
def test_limits_of_a_probability(events, trials):
    exact = stats.binomtest(events, trials, alternative="less").proportion_ci(0.98, method="exact").high
    assert upper_limit(events, trials, 0.02) == pytest.approx(exact, rel=1e-6)


def test_the_bound_is_the_formula_of_the_trials_that_are_counted():
    without, present = np.zeros((150, 1)), np.ones((150, 1))
    without[143:], present[138:] = 1, 0  # 7 and 12 errors among the 100 that are counted
    level = (1 - 0.95) / 6  # two limits at three thresholds
    alpha, beta = (
        stats.binomtest(k, 100, alternative="less").proportion_ci(1 - level, method="exact").high for k in (7, 12)
    )
    expected = -stats.norm.ppf(alpha) - stats.norm.ppf(beta)
    assert mu_lower_bound(without, present, 0.95) == pytest.approx(expected, rel=1e-6)


def test_what_is_counted_chooses_nothing():
    """Only the first third decides on the test: an adversary who is wrong about the others has proved nothing."""
    without, present = gaussian_worlds(3.0, 300, np.random.default_rng(0))
    without[100:], present[100:] = present[100:].copy(), without[100:].copy()
    assert mu_lower_bound(without, present, 0.9) == 0.0


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 3.0])
def test_the_bound_holds_with_its_confidence(mu):
    rng = np.random.default_rng(1)
    bounds = [mu_lower_bound(*gaussian_worlds(mu, 400, rng), 0.9) for _ in range(500)]
    above = sum(bound > mu for bound in bounds)
    assert above <= stats.binom.isf(1e-6, 500, 0.1)
    assert np.mean(bounds) > mu - 0.6 - 0.1 * mu  # and it says something


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_the_bound_comes_near_the_truth(mu):
    bound = mu_lower_bound(*gaussian_worlds(mu, 200_000, np.random.default_rng(2)), 0.999)
    assert 0.94 * mu < bound < mu


def test_the_discriminant_is_fishers():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 4))
    apart = np.array([1.0, -0.5, 0.2, 0.0])
    without, present = rng.normal(size=(2, 100_000, 4)) @ root.T
    found, best = discriminant(without, present + apart), np.linalg.solve(root @ root.T, apart)
    cosine = found @ root @ root.T @ best / math.sqrt((found @ root @ root.T @ found) * (best @ apart))
    assert cosine > 0.999
    bound = mu_lower_bound(without, present + apart, 0.9)
    assert 0.9 * math.sqrt(best @ apart) < bound < math.sqrt(best @ apart)


def test_numbers_without_noise_are_found_among_noisy_ones():
    rng = np.random.default_rng(4)
    worlds = []
    for moved in (0.0, 0.05):
        noise = rng.normal(size=(100, 1))
        worlds.append(np.hstack([noise, noise + moved, rng.normal(size=(100, 3)), np.zeros((100, 2))]))
    assert mu_lower_bound(*worlds, 0.9) > 2.5  # no error at all in 66 trials shows 3
    assert mu_lower_bound(np.zeros((100, 2)), np.full((100, 2), 1e-9), 0.9) > 2.5
    assert mu_lower_bound(np.zeros((100, 2)), np.zeros((100, 2)), 0.9) == 0.0


@pytest.mark.parametrize(("trials", "confidence"), [(3, 0.9), (10, 1.0), (10, 0.0)])
def test_a_bound_from_nothing_is_refused(trials, confidence):
    with pytest.raises(ValueError, match=r"at least 4 are needed|must be between"):
        mu_lower_bound(np.zeros((trials, 1)), np.ones((trials, 1)), confidence)


# ---- attacks on clients ----

SMALL = (
    "rounds=1",
    "partition.clients=2",
    "data.alignment=30",
    "privacy.dimensions=10",
    'models=[{name="mlp"}]',
)


def configured(mechanism, method="fedmd", **privacy):
    changes = [f"privacy.{name}={value}" for name, value in privacy.items()]
    return load_config(None, [*SMALL, f"method={method}", f"privacy.mechanism={mechanism}", *changes])


@pytest.fixture
def quick(monkeypatch):
    """Thousands of trials in seconds: no waiting for the disk, and pure functions are not worked out again."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    if os.access("/dev/shm", os.W_OK):  # files in memory, on most systems
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    for name in ("gaussian_mu", "gaussian_epsilon"):
        cached = lru_cache(getattr(accountant, name))
        for module in (accountant, ledger, plan, spending):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, cached)


@pytest.fixture
def repeatable_noise(monkeypatch):
    """The system's randomness from a seed, so that a test that passes passes always."""
    rng, bits = np.random.default_rng(5), random.Random(5)
    monkeypatch.setattr(os, "urandom", rng.bytes)
    monkeypatch.setattr(discrete.secrets, "randbits", bits.getrandbits)


@pytest.fixture
def attacked(quick, repeatable_noise):
    def run(mechanism, trials, **privacy):
        privacy = {"epsilon": 12, "releases": 1, **privacy}  # where the fewest trials tell most
        return audit(configured(mechanism, **privacy), trials=trials, confidence=0.9)

    return run


@pytest.mark.parametrize(
    ("method", "mechanism", "releases", "noise"),
    [
        ("fedbnn", "dp_teacher", 1, "continuous"),
        ("fedmd", "dp_teacher", 1, "discrete"),
        ("fedmd", "dp_teacher", 3, "continuous"),
        ("fedbnn", "dp_moments", 3, "continuous"),
        ("fedmd", "dp_moments", 2, "discrete"),
        ("fedmd", "output_perturbation", 2, "continuous"),
        ("fedmd", "output_perturbation", 1, "discrete"),
    ],
)
def test_honest_clients_are_not_caught_and_the_attack_is_strong(method, mechanism, releases, noise, attacked):
    found = attacked(mechanism, 200, method=method, releases=releases, noise=noise)
    assert not found.caught
    assert 0.5 * found.mu < found.mu_lower < found.mu


def noise_times(factor, monkeypatch):
    honest = release_gate.with_noise
    monkeypatch.setattr(release_gate, "with_noise", lambda total, sd, noise: honest(total, factor * sd, noise))


@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments", "output_perturbation"])
def test_half_the_noise_is_caught(mechanism, attacked, monkeypatch):
    noise_times(0.5, monkeypatch)
    assert attacked(mechanism, 160).caught


def test_a_fifth_less_noise_is_caught(attacked, monkeypatch):
    noise_times(0.8, monkeypatch)
    assert attacked("dp_moments", 1100).caught


def test_gradients_as_long_as_they_are_are_caught(attacked, monkeypatch):
    def unclipped(phi, y, weights, shape):
        phi = phi.double()
        error = torch.nn.functional.one_hot(y, shape.classes) - (phi @ weights.double()).softmax(1)
        rows = (phi.unsqueeze(2) * error.unsqueeze(1)).flatten(1)
        return torch.cat([rows, torch.full((len(rows), 1), shape.count_weight)], 1)

    monkeypatch.setattr(head, "contributions", unclipped)
    assert attacked("dp_moments", 450).caught


def forget_rounds_in_the_noise(monkeypatch):
    honest = accountant.noise_multiplier
    monkeypatch.setattr(
        plan, "noise_multiplier", lambda epsilon, delta, releases, multiplicity: honest(epsilon, delta, 1, multiplicity)
    )


def forget_what_was_spent(monkeypatch):
    monkeypatch.setattr(ledger.Ledger, "_check_budget", lambda *_: None)


@pytest.mark.parametrize(("mechanism", "trials"), [("dp_teacher", 250), ("dp_moments", 160)])
def test_noise_for_one_release_on_each_of_four_is_caught(mechanism, trials, attacked, monkeypatch):
    forget_rounds_in_the_noise(monkeypatch)
    forget_what_was_spent(monkeypatch)
    assert attacked(mechanism, trials, releases=4).caught


def test_noise_for_one_release_is_stopped_by_the_ledger_at_the_second(attacked, monkeypatch):
    forget_rounds_in_the_noise(monkeypatch)
    with pytest.raises(UserError, match="is refused"):
        attacked("dp_moments", 4, releases=2)


def test_a_ledger_that_forgets_is_caught(attacked, monkeypatch):
    """The noise is right for one release, and the server asks for two."""
    forget_what_was_spent(monkeypatch)
    assert attacked("dp_moments", 500).caught


def test_noise_that_is_used_twice_is_caught(attacked, monkeypatch):
    honest, drawn = release_gate.with_noise, []

    def reused(total, sd, noise):
        if len(drawn) % 2 == 0:  # a client makes two releases
            drawn.append(honest(torch.zeros_like(total), sd, noise))
        else:
            drawn.append(drawn[-1])
        return total + drawn[-1]

    monkeypatch.setattr(release_gate, "with_noise", reused)
    assert attacked("dp_moments", 100, releases=2).caught


def test_logits_in_place_of_probabilities_are_caught(attacked, monkeypatch):
    honest = Exchange.reply

    def reply(self, client, message, round_number, prediction, taught):
        if not client.privacy.on:
            return honest(self, client, message, round_number, prediction, taught)
        return Message({"phi": client.gate.outputs(prediction().logits, None, round_number)})

    monkeypatch.setattr(Exchange, "reply", reply)
    assert not attacked("output_perturbation", 100).caught  # they are put on the simplex before they leave
    monkeypatch.setattr(release_gate, "onto_simplex", lambda rows: rows.double())
    assert attacked("output_perturbation", 100).caught


def test_the_sensitivity_of_one_output_for_all_of_them_is_caught(attacked, monkeypatch):
    """The paper's: Delta^2 <= 2 is true of one point of the alignment set."""
    monkeypatch.setattr(release_gate, "simplex_sensitivity", lambda points: math.sqrt(2))
    assert attacked("output_perturbation", 100).caught


# ---- how strong attacks are, without noise ----


def shown_without_noise(config, folder, monkeypatch):
    """How far the canary moves what the adversary reads, in the turns that are planned."""
    monkeypatch.setattr(release_gate, "with_noise", lambda total, sd, noise: total)
    site = Prepared.of(config, []).sites[0]
    attack = attack_on(config.chosen(), replace(site.client, privacy=replace(config.privacy, force=True)))
    without, present = (
        np.array(attack.trial(client, folder / name)).reshape(len(attack.messages), -1)
        for name, client in (("without", attack.without), ("present", attack.present))
    )
    return (present - without)[: attack.planned, 0]


def test_a_canary_has_the_longest_contribution_in_every_round(tmp_path, monkeypatch):
    moved = shown_without_noise(configured("dp_moments", releases=3), tmp_path, monkeypatch)
    assert moved == pytest.approx([head.Shape(10, 10).sensitivity] * 3, rel=1e-5)


@pytest.mark.parametrize("releases", [1, 2])
def test_a_canary_changes_every_output(releases, tmp_path, monkeypatch):
    moved = shown_without_noise(configured("output_perturbation", releases=releases), tmp_path, monkeypatch)
    assert moved == pytest.approx([math.sqrt(2 * 30)] * releases, rel=1e-5)


def test_a_canary_is_read_from_a_teachers_probabilities(tmp_path, monkeypatch):
    """phi (e_b - 1 / classes), read along phi for class b: 0.9, but for the count, which is one more with it."""
    moved = shown_without_noise(configured("dp_teacher", releases=1), tmp_path, monkeypatch)
    assert moved == pytest.approx([0.9], rel=0.2)


# ---- the function that the command calls ----


def test_the_result_says_it_all(attacked):
    done = []
    found = audit(configured("dp_moments", epsilon=3), trials=20, confidence=0.9, progress=done.append)
    assert done == list(range(1, 21))
    assert (found.mechanism, found.epsilon, found.delta) == ("dp_moments", 3.0, 1e-5)
    assert found.mu == accountant.gaussian_mu(3.0, 1e-5)
    assert found.epsilon_lower == accountant.gaussian_epsilon(found.mu_lower, 1e-5)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert found.to_dict()["caught"] is False
    assert replace(found, mu_lower=1.01 * found.mu).caught


def test_every_trial_has_noise_and_a_ledger_of_its_own(quick, tmp_path):
    config = configured("dp_moments")
    site = Prepared.of(config, []).sites[0]
    attack = attack_on(config.chosen(), site.client)
    first, second = (attack.trial(attack.present, tmp_path / name) for name in ("first", "second"))
    assert first != second
    assert attack.trial(attack.present, tmp_path / "first") == first
    assert first[2:] == [0.0, 0.0]  # more than was planned


def test_ledgers_of_the_configuration_are_left_alone(quick, tmp_path):
    audit(configured("dp_teacher", ledgers=tmp_path / "ledgers"), trials=4)
    assert not (tmp_path / "ledgers").exists()


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (["privacy.mechanism=none"], {}, "privacy.mechanism = 'none'"),
        (["method=fedavg", "privacy.mechanism=dp_teacher"], {}, "no private exchange"),
        (["method=local", "privacy.mechanism=dp_teacher"], {}, "local"),
        (["privacy.mechanism=dp_teacher"], {"trials": 3}, "trials = 3: must be at least 4"),
        (["privacy.mechanism=dp_teacher"], {"confidence": 1.0}, "confidence = 1.0: must be between 0 and 1"),
        (["privacy.mechanism=dp_teacher", "data.alignment=0"], {}, "data.alignment"),
    ],
)
def test_what_cannot_be_audited(changes, options, words):
    with pytest.raises(UserError, match=words):
        audit(load_config(None, [*SMALL, *changes]), **{"trials": 4, **options})


def test_noise_that_drowns_everything_can_be_audited(quick):
    assert audit(configured("output_perturbation", epsilon=0.1), trials=4).mu_lower == 0.0


def test_a_bound_of_no_error_in_a_thousand_trials():
    """What the default number of trials can prove at most: enough to refute an epsilon of 20."""
    most = mu_lower_bound(np.zeros((1000, 1)), np.ones((1000, 1)), 0.999)
    assert most == pytest.approx(-2 * ndtri(1 - (0.001 / 6) ** (1 / 667)), rel=1e-9)
    assert accountant.gaussian_epsilon(most, 1e-5) > 20
