"""The likelihood ratio attack against worlds in which the best attack is known in closed form."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

from fedbnn import Federation, federate, load_config, load_dataset, make_sites
from fedbnn.audit.membership import (
    Own,
    Whole,
    attack,
    auc,
    auc_bound,
    leak,
    log_ratios,
    tpr_bound,
    true_positives,
)
from fedbnn.audit.membership_views import views_of_exchange, views_of_weights
from fedbnn.base.errors import UserError
from fedbnn.features.public import public
from fedbnn.federation.parties import Client
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import Records, TrainingSettings
from fedbnn.privacy import PrivacySettings, gaussian_mu
from fedbnn.privacy.head import TEACHER, Shape, contributions, improved
from fedbnn.privacy.sums import UNIT

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def tossed(rng, runs, records):
    return rng.random((runs, records)) < 0.5


def within(figure, truth, slack=0.0):
    """Inside limits that are twice as wide: a test in 20 shall not fail."""
    half = figure.high - figure.low
    return figure.value - half - slack <= truth <= figure.value + half + slack


# ---- the attack in Gaussian worlds ----


@pytest.mark.parametrize("mu", [0.5, 1.5, 3.0])
def test_a_shift_is_told_as_well_as_it_can_be(mu, rng):
    coins = tossed(rng, 800, 20)
    found = attack({"own": Own(7 + 3 * (mu * coins + rng.standard_normal(coins.shape)))}, coins)
    figures = leak(found.scores, coins)
    assert within(figures.auc, auc_bound(mu))
    assert within(figures.tpr[0], tpr_bound(mu, 0.01))
    assert within(figures.tpr[1], tpr_bound(mu, 0.001))


def test_worlds_that_differ_in_their_variance_alone(rng):
    """N(0, 1) out and N(0, 4) in: the best test looks at t^2, and P(|X| < 2 |Y|) = 2 / pi arctan 2."""
    coins = tossed(rng, 800, 20)
    found = attack({"own": Own(np.where(coins, 2.0, 1.0) * rng.standard_normal(coins.shape))}, coins)
    assert within(leak(found.scores, coins).auc, 2 / math.pi * math.atan(2))


def test_records_are_told_apart_in_the_whole_upload(rng):
    """Orthogonal directions of lengths 1 and 2 in noise: a regression finds them, and nothing beyond them."""
    records, numbers = 4, 8
    directions = np.linalg.qr(rng.standard_normal((numbers, records)))[0].T * np.array([[1.0], [2.0]]).repeat(2, 0)
    coins = tossed(rng, 800, records)
    scores = attack({"whole": Whole(coins @ directions + rng.standard_normal((800, numbers)))}, coins).scores
    for mu, part in ((1.0, slice(0, 2)), (2.0, slice(2, 4))):
        figure = leak(scores[:, part], coins[:, part]).auc
        assert figure.low < auc_bound(mu)
        assert figure.value == pytest.approx(auc_bound(mu), abs=0.03)


def test_records_whose_directions_overlap_are_told_apart_only_together(rng):
    """Without noise: along one direction the other records stand in the way, and a regression removes them."""
    directions = rng.standard_normal((10, 12)) + 2
    coins = tossed(rng, 200, 10)
    sent = coins @ directions
    own = {"own": Own(sent @ directions.T)}
    found = attack({"whole": Whole(sent), **own}, coins)
    assert set(found.chosen) == {"whole"}
    assert auc(found.scores, coins) > 0.9999
    assert auc(attack(own, coins).scores, coins) < 0.9


def test_the_own_direction_is_chosen_where_noise_leaves_nothing_to_learn(rng):
    directions = np.linalg.qr(rng.standard_normal((400, 10)))[0].T
    coins = tossed(rng, 80, 10)
    sent = coins @ (1.5 * directions) + rng.standard_normal((80, 400))
    assert set(attack({"whole": Whole(sent), "own": Own(sent @ directions.T)}, coins).chosen) == {"own"}


def test_nothing_is_found_where_nothing_is_sent(rng):
    """Many numbers and few runs: whoever scored a run that he had learned from would find everything."""
    coins = tossed(rng, 60, 40)
    sent = rng.standard_normal((60, 3000))
    figure = leak(attack({"whole": Whole(sent), "own": Own(sent[:, :40])}, coins).scores, coins).auc
    assert within(figure, 0.5)


def test_a_target_has_no_part_in_its_own_score(rng):
    coins = tossed(rng, 40, 6)
    sent = coins @ rng.standard_normal((6, 9)) + rng.standard_normal((40, 9))
    flipped = coins.copy()
    flipped[0] = ~flipped[0]
    views = {"whole": Whole(sent), "own": Own(sent[:, :6])}
    first, second = (attack(views, known) for known in (coins, flipped))
    np.testing.assert_array_equal(first.scores[0], second.scores[0])
    assert not np.array_equal(first.scores[1], second.scores[1])


def test_what_shadows_never_show_is_not_guessed(rng):
    coins = tossed(rng, 20, 3)
    coins[:, 1] = True
    shadows = np.arange(20) < 15
    scores = log_ratios(rng.standard_normal((20, 3)), coins, shadows)
    assert (scores[:, 1] == 0).all()
    assert (scores[:, [0, 2]] != 0).all()
    with pytest.raises(ValueError, match="there are 7 runs"):
        attack({"own": Own(np.zeros((7, 3)))}, coins[:7])


# ---- measures and bounds ----


def test_measures_by_hand():
    scores = np.array([[4.0, 3.0, 2.0, 2.0, 1.0, 0.0]])
    coins = np.array([[True, False, True, False, False, True]])
    assert auc(scores, coins) == pytest.approx((3 + 1.5 + 0) / 9)
    assert true_positives(scores, coins, 0.0) == pytest.approx(1 / 3)
    assert true_positives(scores, coins, 0.34) == pytest.approx(1 / 3)  # the tie at 2 is not above it
    assert true_positives(scores, coins, 0.67) == pytest.approx(2 / 3)
    assert auc(np.zeros((1, 6)), coins) == 0.5
    assert true_positives(np.zeros((1, 6)), coins, 0.5) == 0.0  # one threshold: all or nothing


def test_bounds_are_those_of_two_normal_distributions():
    mu = gaussian_mu(3.0, 1e-5)
    assert auc_bound(mu) == pytest.approx(0.694, abs=5e-4)
    assert tpr_bound(mu, 0.01) == pytest.approx(1 - ndtr(ndtri(0.99) - mu))
    assert (auc_bound(0.0), tpr_bound(0.0, 0.01)) == (0.5, pytest.approx(0.01))
    rates = np.linspace(1e-6, 1 - 1e-6, 20001)
    assert np.trapezoid([tpr_bound(mu, rate) for rate in rates], rates) == pytest.approx(auc_bound(mu), abs=1e-4)


# ---- views of what mechanisms send ----

CLASSES, RUNS, CANDIDATES = 3, 800, 12


@pytest.fixture
def client():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CANDIDATES, 6, generator=generator)
    return Client(
        index=0,
        name="one",
        train=Records(x, torch.arange(CANDIDATES) % CLASSES),
        alignment=torch.randn(60, 6, generator=generator),
        classes=CLASSES,
        model=ModelSettings("mlp"),
        training=TrainingSettings(),
        rounds=3,
        seed=0,
        privacy=PrivacySettings(mechanism="dp_moments", epsilon=8.0, dimensions=8),
        ledgers=None,
    )


def sent_by(client, coins, rng, noise=1.0):
    """What the client's mechanism sends, many times at once: sums of contributions with Gaussian noise, or heads."""
    features = public(client.alignment, client.privacy.features, client.privacy.dimensions)
    shape = Shape(features.map.dimensions, CLASSES)
    rows = contributions(features.map(client.train.x), client.train.y, shape.empty(), shape).numpy()
    sd = client.privacy.plan(client.rounds, 1).noise_multiplier * shape.sensitivity
    sums = coins @ rows + noise * sd * rng.standard_normal((len(coins), shape.numbers))
    if client.privacy.mechanism == "dp_moments":
        return np.rint(sums / UNIT).astype(np.int64)
    heads = [improved(shape.empty(), torch.from_numpy(s), sd, features.moments, shape, TEACHER) for s in sums]
    return np.stack([features.outputs(head).numpy() for head in heads])


@pytest.mark.parametrize(("mechanism", "short_of"), [("dp_moments", 0.0), ("dp_teacher", 0.1)])
def test_the_bound_is_reached_by_who_knows_all_others_and_passed_by_nobody(mechanism, short_of, client, rng):
    """What a teacher sends has lost the count, and how far its head went depends on it."""
    coins = tossed(rng, RUNS, CANDIDATES)
    client = replace(client, privacy=replace(client.privacy, mechanism=mechanism))
    sent = sent_by(client, coins, rng)
    bound = auc_bound(gaussian_mu(8.0, 1e-5))
    for others_known in (False, True):
        views = views_of_exchange(sent, client, client.train, coins, others_known=others_known)
        figures = leak(attack(views, coins).scores, coins)
        assert figures.auc.low < bound
        assert figures.tpr[0].low < tpr_bound(gaussian_mu(8.0, 1e-5), 0.01)
        if others_known:
            assert figures.auc.high > bound - short_of
        else:
            assert 0.55 < figures.auc.value < bound


def test_too_little_noise_shows(client, rng):
    """Half the noise that epsilon 8 asks for is above its bound."""
    coins = tossed(rng, RUNS, CANDIDATES)
    sent = sent_by(client, coins, rng, noise=0.5)
    views = views_of_exchange(sent, client, client.train, coins, others_known=True)
    assert leak(attack(views, coins).scores, coins).auc.low > auc_bound(gaussian_mu(8.0, 1e-5))


def test_confidence_in_a_label_is_that_of_the_weights(client):
    weights = client.initial_weights()
    with torch.no_grad():
        client.network.weights.copy_(weights)
        probs = client.network(client.train.x).softmax(1)[torch.arange(CANDIDATES), client.train.y].double()
    views = views_of_weights(torch.stack([weights, 0 * weights]).numpy(), client, client.train)
    assert isinstance(views["own"], Own)
    np.testing.assert_allclose(views["own"].values[0], (probs / (1 - probs)).log(), rtol=1e-4)
    np.testing.assert_allclose(views["own"].values[1], math.log(0.5), rtol=1e-5)  # one of three, without weights


# ---- the study ----


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("membership_study", ROOT / "experiments" / "membership.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.CLIENTS, module.PER_CLASS, module.CHUNK = 2, 4, 8
    return module


def test_the_study_runs_and_goes_on_where_it_stopped(study, tmp_path, monkeypatch):
    few = ["--only", "off-40", "dp_teacher-40-3", "dp_moments-40-3", "fedavg-400", "--workers", "1", "--seeds", "0"]
    few += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    study.main(["--shadows", "8", *few])
    rows = json.loads((tmp_path / "out" / "membership.json").read_text())
    assert [(row["sent"], row["upload"], row["knows"]) for row in rows] == [
        ("off", "first", "shadows"),
        ("off", "second", "shadows"),
        ("dp_teacher", "first", "shadows"),
        ("dp_teacher", "first", "all others"),
        ("dp_moments", "first", "shadows"),
        ("dp_moments", "first", "all others"),
        ("fedavg", "first", "shadows"),
    ]
    made = (tmp_path / "out" / "membership.md").read_text()
    assert "0.694" in made
    monkeypatch.setattr(study.World, "uploads", None)  # nothing is trained again
    study.main(["--shadows", "8", *few])
    assert (tmp_path / "out" / "membership.md").read_text() == made


def test_runs_of_the_study_are_those_of_a_federation(study):
    """A client that holds all candidates sends what it sends in a real run, warm-up and first exchange."""
    setting = study.Setting("off", 40)
    world = study.World(setting, 0, "digits")
    world.candidates = world.client.train
    world.coins = lambda run: np.ones(len(world.candidates), dtype=bool)
    sent = world.uploads(0)
    config = load_config(
        None, ["method=fedbnn_paper", "data.alignment=40", "partition.clients=2", "partition.records_per_class=4"]
    )
    data = federate(load_dataset(config.data), config.data, config.partition, 0)
    federation = Federation(
        config.chosen(), make_sites(data, config.models, config.training, rounds=12, seed=0), seed=0
    )
    for number in range(2):
        federation.step(evaluate=False)
        np.testing.assert_array_equal(sent[number], federation.server.phi[0].numpy())


def test_mistakes_are_told(study, tmp_path):
    where = ["--work", str(tmp_path), "--out", str(tmp_path)]
    with pytest.raises(UserError, match="--only off: there are off-40"):
        study.main(["--only", "off", *where])
    with pytest.raises(UserError, match="--shadows = 0"):
        study.main(["--shadows", "0", *where])


def test_tables_of_the_page_are_those_of_the_committed_results(study):
    rows = json.loads((ROOT / "experiments" / "results" / "membership.json").read_text())
    assert (ROOT / "experiments" / "results" / "membership.md").read_text() == study.page(rows, "digits")
    page = (ROOT / "docs" / "what-is-protected.md").read_text()
    assert "\n".join(study.table(rows, "shadows")) in page
