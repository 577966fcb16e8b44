"""The softmax model that predicts beside the network, and what a mixture of two predictions says."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client
from fedbnn.methods import FedBNN
from fedbnn.methods.parts.feature_model import CONSENSUS_WEIGHT, companion_prediction, fit_companion
from fedbnn.models.bayes import Prediction, entropy, mixture
from fedbnn.models.softmax import STRENGTH, fit_softmax
from fedbnn.privacy import PrivacySettings
from tests.federation_sample import small_sites, with_client

RNG = Stream((0, "test"))
SETTINGS = {"prior_steps": 3, "mc_samples": 2, "consensus": "sharpened", "teacher": "both", "gamma": 1.0}


@pytest.fixture(scope="module")
def client() -> Client:
    return small_sites(1, models=("mlp",))[0].client


def random_prediction(rows: int, classes: int, seed: int) -> Prediction:
    rng = torch.Generator().manual_seed(seed)
    draws = torch.randn(3, rows, classes, generator=rng).mul(3).softmax(2)
    return Prediction(draws.mean(0), draws.log().mean(0), torch.stack([entropy(one) for one in draws]).mean(0))


@given(st.integers(1, 6), st.integers(2, 5), st.integers(0, 1000))
def test_a_mixture_is_unsure_of_what_its_parts_disagree_about(rows, classes, seed):
    one, other = random_prediction(rows, classes, seed), random_prediction(rows, classes, seed + 1)
    both = mixture(one, other)
    torch.testing.assert_close(both.probs.sum(1), torch.ones(rows))
    # I[y; model, weights] = I[y; model] + mean I[y; weights | model], and neither is negative
    between = entropy(both.probs) - (entropy(one.probs) + entropy(other.probs)) / 2
    torch.testing.assert_close(both.epistemic, between + (one.epistemic + other.epistemic) / 2, rtol=0, atol=1e-5)
    assert (between > -1e-6).all()


def test_a_mixture_of_a_prediction_with_itself_is_that_prediction():
    one = random_prediction(5, 3, 0)
    same = mixture(one, one)
    assert all(torch.equal(getattr(same, name), getattr(one, name)) for name in ("probs", "logits", "aleatoric"))


@given(st.integers(0, 100), st.integers(2, 4))
def test_the_gradient_vanishes_where_it_ends(seed, classes):
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(12, 5, generator=rng, dtype=torch.float64)
    target = 3 * torch.rand(12, classes, generator=rng, dtype=torch.float64)  # not normalised: rows have weights
    weights = fit_softmax(features, target).requires_grad_()
    logs = (features @ weights[:-1] + weights[-1]).log_softmax(1)
    loss = STRENGTH * weights[:-1].square().sum() / 2 - (target * logs).sum()
    loss.backward()
    assert weights.grad.abs().max() < 1e-4


def test_without_a_consensus_the_bias_alone_gives_the_frequencies_of_the_classes(client):
    """With features that say nothing, the optimum is the logarithm of how often each class is."""
    counts = torch.bincount(client.train.y, minlength=client.classes)
    held = counts > 0
    own = functional.one_hot(client.train.y, client.classes).double()
    weights = fit_softmax(torch.zeros(len(own), 3, dtype=torch.float64), own)
    torch.testing.assert_close(weights[-1].softmax(0)[held], counts[held] / counts.sum().double(), rtol=0, atol=1e-4)


def test_it_learns_what_it_hears(client):
    """Told of one class on the whole alignment set, it says that class there, in proportion to its weight."""
    heard = torch.zeros(len(client.alignment), client.classes)
    absent = next(c for c in range(client.classes) if c not in client.train.y)
    heard[:, absent] = 1.0
    alone = companion(client, None, client.alignment)
    told = companion(client, heard, client.alignment)
    assert alone.probs[:, absent].mean() < 0.05
    assert told.probs[:, absent].mean() > 0.5 * CONSENSUS_WEIGHT / (1 + CONSENSUS_WEIGHT)
    assert told.probs[:, absent].mean() > 10 * alone.probs[:, absent].mean()
    torch.testing.assert_close(told.aleatoric, told.total)  # one model: nothing to disagree about


def test_features_of_images_are_refused_for_a_table_before_any_work(client):
    table = dataclasses.replace(client, alignment=torch.zeros(5, 4), privacy=PrivacySettings(features="scattering"))
    with pytest.raises(UserError, match="'scattering' needs images"):
        FedBNN(companion=True).check_client(table)
    FedBNN().check_client(table)


def companion(client, target, x):
    return companion_prediction(client, fit_companion(client, target), x)


def turn(method: FedBNN, client: Client, message: Message, number: int):
    return method.client_update(method.client_init(client), client, message, number, RNG)


def test_predictions_are_the_mean_of_both_and_what_is_sent_does_not_change(client):
    with_, without = FedBNN(**SETTINGS, companion=True), FedBNN(**SETTINGS)
    phi_bar = torch.full((len(client.alignment), client.classes), 1 / client.classes)
    message = Message({"phi_bar": phi_bar})
    two, one = turn(with_, client, message, 1), turn(without, client, message, 1)
    assert torch.equal(two.message.arrays["phi"], one.message.arrays["phi"])
    assert torch.equal(two.state.theta, one.state.theta)
    assert one.state.companion is None
    assert torch.equal(two.state.companion, fit_companion(client, phi_bar))  # fitted once, and not in each prediction
    x = client.alignment[:7]
    found = with_.predict(two.state, client, x, RNG)
    parts = without.predict(one.state, client, x, RNG).probs, companion(client, phi_bar, x).probs
    torch.testing.assert_close(found.probs, sum(parts) / 2)


def test_it_predicts_under_privacy_too_and_nothing_more_is_released(client, tmp_path):
    private = PrivacySettings(mechanism="dp_teacher", epsilon=5.0, delta=1e-3)
    [site] = small_sites(1, models=("mlp",))
    guarded = with_client(site, privacy=private, ledgers=tmp_path).client
    first = turn(FedBNN(**SETTINGS, companion=True), guarded, Message({}), 0)
    spent = guarded.gate.guarantee().epsilon
    assert math.isclose(spent, 5.0, rel_tol=0.01)
    FedBNN(**SETTINGS, companion=True).predict(first.state, guarded, guarded.alignment[:3], RNG)
    assert guarded.gate.guarantee().epsilon == spent


def test_features_of_records_are_worked_out_once(client, monkeypatch):
    other = dataclasses.replace(client, alignment=client.alignment + 0.125)  # a set that no other test has used
    asked = []
    companion(other, None, other.alignment[:2])
    from fedbnn.features.maps import FeatureMap

    real = FeatureMap.__call__
    monkeypatch.setattr(FeatureMap, "__call__", lambda self, x: asked.append(len(x)) or real(self, x))
    companion(other, None, other.alignment[:3])
    assert asked == [3]
