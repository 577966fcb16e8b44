"""Label priors from the method through the engines: which are asked for, and what they do."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.engines import Engine, InProcess
from fedbnn.federation.evaluation import evaluate
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.federation.method import Variant
from fedbnn.federation.parties import Client
from fedbnn.methods import FedAvg, FedBNN, Local, LocalBNN, PFedBayes, PFedGP
from fedbnn.methods.bayesian import Posterior
from fedbnn.models.bayes import Prediction, average
from fedbnn.models.label_prior import estimate_prior, uniform
from tests.federation_sample import small_sites


@pytest.fixture(scope="module", params=["in process", "two workers"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return InProcess() if request.param == "in process" else request.getfixturevalue("two_workers")


def shares_by_hand(client: Client) -> Tensor:
    labels = client.train.y.tolist()
    counts = [labels.count(c) + 0.5 for c in range(client.classes)]
    return torch.tensor(counts) / (len(labels) + client.classes / 2)


def test_fedavgs_global_model_under_own_shares_is_bayes_rule_by_hand(engine: Engine) -> None:
    sites = small_sites(3, models=("cnn2",))
    federation = Federation(FedAvg(learning_rate=5e-3), sites, engine=engine)
    record = federation.run(1)[-1]
    for site in sites:
        client, x = site.client.index, site.evaluation.x
        server = average(site.client.network, iter([federation.server.tensors()["weights"]]), x)
        joint = server.probs * shares_by_hand(site.client)  # all clients' classes are alike: the ratio is these shares
        expected = joint / joint.sum(1, keepdim=True)
        found = federation.predict(client, x, "global_own_prior")
        torch.testing.assert_close(found.probs, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.probs, federation.predict(client, x, "global", prior="own").probs)
        assert found.prior is not None
        torch.testing.assert_close(found.prior.float(), shares_by_hand(site.client))
        scores = evaluate(found, site.evaluation.y, site.own).scores
        assert record.scores[client]["global_own_prior"].scores == scores
        ahead = scores["own_class_accuracy"] - record.scores[client]["global"].scores["own_class_accuracy"]
        assert ahead > 0  # clients hold few of the classes: to know which helps


@pytest.mark.parametrize("prior", [None, "own", "uniform", "estimate", [1.0, *[3.0] * 9], torch.arange(10)])
def test_engines_agree_under_every_prior(prior: Any, two_workers: Engine) -> None:
    method = PFedBayes(iterations=3, inner_steps=2, mc_samples=3)
    sites = small_sites(2, models=("mlp",))
    found: list[Prediction] = []
    for one in (InProcess(), two_workers):
        federation = Federation(method, sites, engine=one)
        federation.step(evaluate=False)
        found.append(federation.predict(1, sites[1].evaluation.x[:9], "global_own_prior", prior))
    for part in fields(Prediction):
        assert torch.equal(*(getattr(one, part.name) for one in found)), part.name
    assert found[0].draws.shape == (3, 9, 10)


def test_what_a_prior_does_to_a_personal_model() -> None:
    """Local learns from its own records: their shares are what it answers under, and are divided out."""
    site = small_sites(1, models=("mlp",))[0]
    federation = Federation(Local(), [site])
    federation.step(evaluate=False)
    x = site.evaluation.x[:50]
    plain, own = federation.predict(0, x), federation.predict(0, x, prior="own")
    assert torch.equal(plain.probs, own.probs)
    assert plain.prior is not None
    torch.testing.assert_close(plain.prior.float(), shares_by_hand(site.client))
    joint = plain.probs / shares_by_hand(site.client)
    alike = federation.predict(0, x, prior="uniform")
    torch.testing.assert_close(alike.probs, joint / joint.sum(1, keepdim=True), rtol=1e-4, atol=1e-6)
    estimated = federation.predict(0, x, prior="estimate")
    assert estimated.prior is not None
    torch.testing.assert_close(estimated.prior, estimate_prior(plain.probs, plain.prior))
    # at its fixed point the estimate is the mean answer under itself
    torch.testing.assert_close(estimated.probs.mean(0).double(), estimated.prior, rtol=0, atol=1e-4)
    certain = federation.predict(0, x, prior=[0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    assert certain.labels.eq(3).all()
    assert certain.logits.isfinite().all()


def test_classes_that_a_gaussian_process_does_not_know_are_left_to_the_prior() -> None:
    method = PFedGP(embedding=8, train_chains=2, test_chains=3, gibbs_steps=2, inner_steps=2, record_cap=10)
    site = small_sites(2, models=("cnn2",))[0]
    federation = Federation(method, [site])
    federation.step(evaluate=False)
    absent = [c for c in range(10) if c not in site.client.train.y]
    prior = torch.zeros(10)
    prior[absent[:2]] = torch.tensor([1.0, 3.0])
    found = federation.predict(0, site.evaluation.x[:5], prior=prior)
    torch.testing.assert_close(found.probs, (prior / 4).expand(5, 10))
    usual = federation.predict(0, site.evaluation.x[:5], prior="uniform")
    assert (usual.epistemic >= 0).all()


@settings
class TwoQuestions(LocalBNN):
    """One model with two questions: as at home, and with every class equally likely."""

    name = "two_questions"

    def scored(self, state: Posterior, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Posterior]:
        return {"personal": state, "general": state}

    def trained_prior(self, variant: Variant, client: Client) -> Tensor:
        return uniform(client.classes)

    def asked_prior(self, variant: Variant, client: Client) -> Tensor | None:
        return client.own_shares if variant == "personal" else None

    def predict(self, state: Posterior, client: Client, x: Tensor, rng: Stream) -> Prediction:
        ASKED.append(len(x))
        return super().predict(state, client, x, rng)


ASKED: list[int] = []


def test_two_questions_to_one_model_share_its_draws() -> None:
    site = small_sites(1, models=("mlp",))[0]
    federation = Federation(TwoQuestions(mc_samples=2), [site])
    ASKED.clear()
    record = federation.step()
    assert [len(site.evaluation)] == ASKED
    assert list(record.scores[0]) == ["personal", "general"]
    x = site.evaluation.x
    general, personal = federation.predict(0, x, "general"), federation.predict(0, x)
    by_hand = general.draws * shares_by_hand(site.client)
    torch.testing.assert_close(personal.draws, by_hand / by_hand.sum(2, keepdim=True), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(personal.probs, personal.draws.mean(0))
    assert personal.prior is not None
    assert general.prior is not None
    assert torch.equal(general.prior, uniform(10))
    for variant, found in (("personal", personal), ("general", general)):
        again = evaluate(found, site.evaluation.y, site.own)
        assert record.scores[0][variant].to_dict() == again.to_dict()


def test_a_network_and_its_head_are_put_under_a_prior_draw_by_draw() -> None:
    site = small_sites(1, models=("mlp",))[0]
    federation = Federation(FedBNN(prior_steps=3, mc_samples=3), [site])
    federation.step(evaluate=False)
    x = site.evaluation.x[:20]
    plain = federation.predict(0, x, "general")
    assert plain.draws.shape == (21, 20, 10)  # of the head, each with one of three of the network
    torch.testing.assert_close(plain.draws.mean(0), plain.probs)
    by_hand = plain.draws * shares_by_hand(site.client)
    expected = (by_hand / by_hand.sum(2, keepdim=True)).mean(0)
    torch.testing.assert_close(federation.predict(0, x).probs, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(federation.predict(0, x, prior="uniform").probs, plain.probs)


@pytest.mark.parametrize("prior", ["mine", [1.0, 2.0], [-1.0, *[1.0] * 9], [0.0] * 10])
def test_a_prior_that_is_none_is_told_before_any_work(prior: Any) -> None:
    site = small_sites(1, models=("mlp",))[0]
    federation = Federation(TwoQuestions(mc_samples=2), [site])
    ASKED.clear()
    with pytest.raises(UserError, match=r"^prior "):
        federation.predict(0, site.evaluation.x[:3], prior=prior)
    assert ASKED == []
