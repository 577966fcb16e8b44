"""The audit is sound (honest clients are never caught), near tight, and catches every way of cheating that we know."""

import json
import math
import os
import random
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbnn.audit import configuration as auditing
from fedbnn.audit import trials as trials_of
from fedbnn.audit.configuration import audit
from fedbnn.audit.trials import coin, played, prepared_attack
from fedbnn.base.errors import UserError
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.methods.exchange import Exchange
from fedbnn.methods.mechanisms import output_perturbation
from fedbnn.privacy import (
    accountant,
    cost,
    discrete,
    head,
    ledger,
    plan,
    release_gate,
)
from fedbnn.runs.config import load_config

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
    if mechanism == "dp_moments":  # a sum: the adversary takes all but the canary away from it, however many there are
        changes.append("partition.records_per_class=1")
    return load_config(None, [*SMALL, f"method={method}", f"privacy.mechanism={mechanism}", *changes])


@pytest.fixture
def quick(monkeypatch):
    """Thousands of trials in seconds: no waiting for the disk, and pure functions are not worked out again."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    for name in ("gaussian_mu", "gaussian_epsilon"):
        cached = lru_cache(getattr(accountant, name))
        for module in (accountant, cost, plan):
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
    """So many trials that simulated audits of N(0, 1) and N(mu, 1), 60 to 150 of each, caught all that is caught here.

    With fresh noise an honest client would be caught in one audit of ten at most: that is the confidence.
    """

    def run(mechanism, trials, **privacy):
        privacy = {"epsilon": 12, "releases": 1, "noise": "continuous", **privacy}  # where the fewest trials tell most
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
    assert attacked(mechanism, 120).caught


def test_a_fifth_less_noise_is_caught(attacked, monkeypatch):
    noise_times(0.8, monkeypatch)
    assert attacked("dp_moments", 900).caught


def test_gradients_as_long_as_they_are_are_caught(attacked, monkeypatch):
    def unclipped(phi, y, weights, shape):
        phi = phi.double()
        error = torch.nn.functional.one_hot(y, shape.classes) - (phi @ weights.double()).softmax(1)
        rows = (phi.unsqueeze(2) * error.unsqueeze(1)).flatten(1)
        return torch.cat([rows, torch.full((len(rows), 1), shape.count_weight)], 1)

    monkeypatch.setattr(head, "contributions", unclipped)
    assert attacked("dp_moments", 600).caught


def forget_rounds_in_the_noise(monkeypatch):
    honest = accountant.noise_multiplier
    monkeypatch.setattr(
        plan, "noise_multiplier", lambda epsilon, delta, releases, multiplicity: honest(epsilon, delta, 1, multiplicity)
    )


def forget_what_was_spent(monkeypatch):
    monkeypatch.setattr(ledger.Ledger, "_check", lambda *_: None)


@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments"])
def test_noise_for_one_release_on_each_of_four_is_caught(mechanism, attacked, monkeypatch):
    forget_rounds_in_the_noise(monkeypatch)
    forget_what_was_spent(monkeypatch)
    assert attacked(mechanism, 150, releases=4).caught


def test_noise_for_one_release_is_stopped_by_the_ledger_at_the_second(attacked, monkeypatch):
    forget_rounds_in_the_noise(monkeypatch)
    with pytest.raises(UserError, match="is refused"):
        attacked("dp_moments", 12, releases=2)


def test_a_ledger_that_forgets_is_caught(attacked, monkeypatch):
    """The noise is right for one release, and the server asks for two."""
    forget_what_was_spent(monkeypatch)
    assert attacked("dp_moments", 400).caught


def test_noise_that_is_used_twice_is_caught(attacked, monkeypatch):
    honest, drawn = release_gate.with_noise, []

    def reused(total, sd, noise):
        if len(drawn) % 2 == 0:  # a client makes two releases
            drawn.append(honest(torch.zeros_like(total), sd, noise))
        else:
            drawn.append(drawn[-1])
        return total + drawn[-1]

    monkeypatch.setattr(release_gate, "with_noise", reused)
    assert attacked("dp_moments", 150, releases=2).caught


def test_logits_in_place_of_probabilities_are_caught(attacked, monkeypatch):
    honest = Exchange.replied

    def replied(self, state, client, message, round_number, own, info):
        if not client.privacy.on:
            return honest(self, state, client, message, round_number, own, info)
        phi = output_perturbation.perturbed(client.gate, own().logits, None, round_number)
        return Update(state, Message({"phi": phi}), info)

    monkeypatch.setattr(Exchange, "replied", replied)
    assert not attacked("output_perturbation", 150).caught  # they are put on the simplex before they leave
    monkeypatch.setattr(output_perturbation, "onto_simplex", lambda rows: rows.double())
    assert attacked("output_perturbation", 150).caught


def test_the_sensitivity_of_one_output_for_all_of_them_is_caught(attacked, monkeypatch):
    """The paper's: Delta^2 <= 2 is true of one point of the alignment set."""
    monkeypatch.setattr(output_perturbation, "simplex_sensitivity", lambda points: math.sqrt(2))
    assert attacked("output_perturbation", 150).caught


# ---- what else is on the wire ----


def test_facts_that_leave_are_caught(attacked, quick):
    """Diagnostics have no noise: whoever gets them needs no arrays."""
    config = configured("dp_teacher", method="fedbnn", epsilon=12)
    assert not audit(config, trials=60, confidence=0.9).caught
    assert audit(config, trials=60, confidence=0.9, facts=True).caught


def test_a_failure_in_one_world_is_caught(attacked, monkeypatch):
    honest = release_gate.ReleaseGate.sums

    def fails(self, head):
        if len(self.y.unique()) > 1:  # the canary is there
            raise RuntimeError("a class that was not expected")
        return honest(self, head)

    monkeypatch.setattr(release_gate.ReleaseGate, "sums", fails)
    assert attacked("dp_moments", 80).caught


def test_noise_that_depends_on_the_number_of_records_is_caught(attacked, monkeypatch):
    """Twice as large for an odd number: no sum gives that away, but the size of the numbers does."""
    honest = release_gate.with_noise

    def scaled(self, question, numbers, sensitivity, total):
        monkeypatch.setattr(release_gate, "with_noise", lambda s, sd, kind: honest(s, sd * (1 + len(self.y) % 2), kind))
        return release(self, question, numbers, sensitivity, total)

    release = release_gate.ReleaseGate.release
    monkeypatch.setattr(release_gate.ReleaseGate, "release", scaled)
    assert attacked("dp_moments", 80).caught


# ---- how strong attacks are, without noise ----


def shown_without_noise(config, folder, monkeypatch):
    """How far the canary moves what the adversary reads, in the turns that are planned."""
    monkeypatch.setattr(release_gate, "with_noise", lambda total, sd, noise: total)
    _, attack = prepared_attack(config, facts=False)
    without, present = (
        np.array(attack.trial(there, folder / str(there))[: attack.turns * attack.looks]).reshape(attack.turns, -1)
        for there in (False, True)
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


def test_the_result_says_it_all(attacked, monkeypatch):
    monkeypatch.setattr(auditing, "_SAY_EVERY", 0.0)
    heard = []
    found = audit(configured("dp_moments", epsilon=3), trials=20, confidence=0.9, progress=heard.append)
    assert [now.trials for now in heard] == list(range(1, 20))
    assert {now.expected for now in heard} == {20}
    assert all(now.left >= 0 and now.mu == found.mu for now in heard)
    assert (found.mechanism, found.epsilon, found.delta, found.trials) == ("dp_moments", 3.0, 1e-5, 20)
    assert found.mu == accountant.gaussian_mu(3.0, 1e-5)
    assert found.epsilon_lower == accountant.gaussian_epsilon(found.mu_lower, 1e-5)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert found.to_dict()["caught"] is False
    assert replace(found, mu_lower=1.01 * found.mu).caught


def test_an_audit_ends_when_its_time_is_over(quick):
    found = audit(configured("dp_moments"), trials=10**6, minutes=1 / 60)
    assert 12 <= found.trials < 10_000
    assert 1 <= found.seconds < 10


def test_every_trial_has_noise_and_a_ledger_of_its_own(quick, tmp_path):
    _, attack = prepared_attack(configured("dp_moments"), facts=False)
    first, second = (attack.trial(True, tmp_path / name) for name in ("first", "second"))
    assert first != second
    assert attack.trial(True, tmp_path / "first") == first
    assert first[2:4] == [0.0, 0.0]  # more than was planned
    assert first[-4:] == [1.0, 0.0, 0.0, 0.0]  # one refusal, no failure, no facts


def test_coins_are_fair_and_repeatable():
    tossed = np.array([coin(0, number) for number in range(10_000)])
    assert abs(tossed.mean() - 0.5) < 4 * 0.5 / 100
    assert abs(np.corrcoef(tossed[1:], tossed[:-1])[0, 1]) < 0.04
    assert [coin(1, number) for number in range(100)] != list(tossed[:100])


def test_trials_leave_nothing_behind(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(trials_of, "_MEMORY", tmp_path)
    _, attack = prepared_attack(configured("dp_moments"), facts=False)
    with closing(played(attack, 0)) as trials:
        for _ in range(3):
            next(trials)
            [folder] = tmp_path.iterdir()
            assert not list(folder.iterdir())
    assert not list(tmp_path.iterdir())


def test_workers_play_the_same_trials(quick, tmp_path, monkeypatch):
    """In order, in the same worlds, with noise of their own; a mistake is told as one, and no folder stays behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if os.access("/dev/shm", os.W_OK):
        tmp_path = Path("/dev/shm")
    before = set(tmp_path.glob("fedbnn-audit-*"))
    config = configured("dp_moments")
    with closing(trials_of.by_workers(config, False, 2)) as trials:
        found = [next(trials) for _ in range(6)]
    assert set(tmp_path.glob("fedbnn-audit-*")) <= before
    assert [(one.number, one.present) for one in found] == [(k, coin(config.seed, k)) for k in range(6)]
    _, attack = prepared_attack(config, facts=False)
    with closing(played(attack, config.seed)) as trials:
        here = next(trials)
    assert here.shown != found[0].shown
    assert here.shown[2:4] + here.shown[5:] == found[0].shown[2:4] + found[0].shown[5:]
    with closing(trials_of.by_workers(configured("none"), False, 1)) as trials, pytest.raises(UserError, match="none"):
        next(trials)


def test_ledgers_of_the_configuration_are_left_alone(quick, tmp_path):
    audit(configured("dp_teacher", ledgers=tmp_path / "ledgers"), trials=12)
    assert not (tmp_path / "ledgers").exists()


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (["privacy.mechanism=none"], {}, "privacy.mechanism = 'none'"),
        (["method=fedavg", "privacy.mechanism=dp_teacher"], {}, "no private exchange"),
        (["method=local", "privacy.mechanism=dp_teacher"], {}, "local"),
        (["privacy.mechanism=dp_teacher"], {"trials": 3}, "trials = 3: must be at least 12"),
        (["privacy.mechanism=dp_teacher"], {"minutes": 0.0}, "minutes = 0.0: must be above 0"),
        (["privacy.mechanism=dp_teacher"], {"workers": 0}, "workers = 0: must be at least 1"),
        (["method=dp_fedavg", "methods.dp_fedavg.noise=seed"], {}, "methods.dp_fedavg.noise = 'seed'"),
        (["method=pate"], {}, "method 'pate': there is no attack on it yet"),
        (
            ["privacy.mechanism=dp_moments", "privacy.aggregation=secure", "partition.clients=20"],
            {},
            "set it to 'plain' and privacy.epsilon = 8",
        ),
        (["privacy.mechanism=dp_teacher"], {"confidence": 1.0}, "confidence = 1.0: must be between 0 and 1"),
        (["privacy.mechanism=dp_teacher", "data.alignment=0"], {}, "data.alignment"),
    ],
)
def test_what_cannot_be_audited(changes, options, words):
    with pytest.raises(UserError, match=words):
        audit(load_config(None, [*SMALL, *changes]), **{"trials": 12, **options})


def test_noise_that_drowns_everything_can_be_audited(quick):
    assert audit(configured("output_perturbation", epsilon=0.1), trials=12).mu_lower == 0.0
