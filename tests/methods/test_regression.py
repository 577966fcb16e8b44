"""Methods that learn real numbers: limits, engines, known noise, and what is refused."""

import numpy as np
import pytest
import torch

from fedbnn import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.engines import InProcess
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.regression_evaluation import REGRESSION_SCORES
from fedbnn.methods import (
    DPFedAvg,
    DPFedSGD,
    DPScaffold,
    FedAvg,
    FedBNN,
    FedBNNPaper,
    FedDF,
    FedMD,
    FedProx,
    Pate,
    PFedGP,
)
from fedbnn.models.regression import Mixture
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings
from tests.regression_sample import LINEAR, METHODS, NOISE, linear_sites


def named(method):
    return "-".join([method.name, getattr(method, "consensus", "")])


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_engines_give_the_same_bits(method, two_workers):
    sites, found = linear_sites(rounds=2), []
    for engine in (InProcess(), two_workers):
        federation = Federation(method, sites, seed=3, engine=engine)
        rounds = federation.run(2)
        said = federation.predict(1, sites[0].evaluation.x[:7])
        assert isinstance(said, Mixture)
        found.append((rounds[-1].scores, said))
    (one, said), (other, again) = found
    assert torch.equal(said.means, again.means)
    assert torch.equal(said.variances, again.variances)
    for client, variants in one.items():
        assert "global_own_prior" not in variants
        assert "general" not in variants
        for variant, scored in variants.items():
            assert scored.scores == other[client][variant].scores
            assert tuple(scored.scores) == REGRESSION_SCORES
            assert scored.pit.count.sum() == len(sites[0].evaluation)


def test_fedprox_without_a_pull_is_fedavg():
    sites = linear_sites(rounds=2)
    with_pull, without = (Federation(method, sites, seed=0) for method in (FedProx(mu=0.0), FedAvg()))
    with_pull.run(2)
    without.run(2)
    assert torch.equal(with_pull.server.weights, without.server.weights)


def test_fedavg_of_one_client_is_that_client_alone():
    sites = linear_sites(clients=1, rounds=1)
    federation = Federation(FedAvg(), sites, seed=0)
    scores = federation.run(1)[-1].scores[0]
    assert scores["global"].scores == scores["fine_tuned"].scores


@pytest.mark.parametrize(
    "method", [FedAvg(learning_rate=0.02), FedBNNPaper(learning_rate=0.02, mc_samples=10)], ids=named
)
def test_known_noise_is_found_and_intervals_hold_what_they_claim(method):
    training = TrainingSettings(local_epochs=10, warmup_epochs=40, batch_size=32)
    sites = linear_sites(900, 3, LINEAR, training, tests=1500, rounds=2)
    federation = Federation(method, sites, seed=0)
    scores = next(iter(federation.run(2)[-1].scores[0].values())).scores
    said = federation.predict(0, sites[0].evaluation.x)
    assert isinstance(said, Mixture)
    assert float(said.aleatoric.sqrt().mean()) == pytest.approx(NOISE, rel=0.12)
    assert scores["rmse"] == pytest.approx(NOISE, rel=0.1)  # nothing is better than knowing the line
    assert scores["coverage_90"] == pytest.approx(0.9, abs=0.04)
    # Of the true distribution: log(sd sqrt(2 pi e)), and sd / sqrt(pi).
    assert scores["nll"] == pytest.approx(np.log(NOISE * np.sqrt(2 * np.pi * np.e)), abs=0.1)
    assert scores["crps"] == pytest.approx(NOISE / np.sqrt(np.pi), rel=0.1)


@pytest.mark.parametrize(
    "method",
    [
        FedMD(digest_steps=500, digest_learning_rate=0.05),
        FedBNNPaper(prior_steps=500, prior_learning_rate=0.05),
    ],
    ids=named,
)
def test_a_consensus_is_learned_in_mean_and_variance(method):
    """Far from what any record says: what is taught on the alignment set arrives in the client's outputs."""
    client = linear_sites(rounds=1, model=LINEAR)[0].client
    target = torch.stack([torch.full((20,), 3.0), torch.full((20,), np.log(0.25))], 1)
    state = method.client_init(client)
    with repeatable(Stream((0,))):
        if isinstance(method, FedMD):
            weights, _ = method.digest(state.weights, target, client, Stream((0,)))
        else:
            weights = method.tune_prior(state.q, target, client, Stream((0,)))[0].mean
        said = client.says(iter([weights]), client.alignment).gaussian
    assert float((said[:, 0] - 3).abs().mean()) < 0.15
    assert float(said[:, 1].exp().mean()) == pytest.approx(0.25, abs=0.1)


@pytest.mark.parametrize(
    "method", [FedDF(), PFedGP(), DPFedAvg(), DPFedSGD(), DPScaffold(), Pate()], ids=lambda one: one.name
)
def test_methods_of_classes_refuse_in_one_line(method):
    with pytest.raises(
        UserError, match=f"^method '{method.name}' is for classification, but data.task = 'regression'$"
    ):
        Federation(method, linear_sites(rounds=1))


@pytest.mark.parametrize("mechanism", ["output_perturbation", "dp_teacher", "dp_moments"])
def test_mechanisms_of_classes_refuse_in_one_line(mechanism):
    sites = linear_sites(rounds=1, privacy=PrivacySettings(mechanism=mechanism))
    told = f"privacy.mechanism = '{mechanism}' is for classification"
    with pytest.raises(UserError, match=told):
        FedBNN().server_init(roster_of(sites))
    with pytest.raises(UserError, match=told):
        FedBNN().check_client(sites[0].client)


def test_a_label_prior_is_refused():
    federation = Federation(FedAvg(), linear_sites(rounds=1))
    federation.run(0)
    with pytest.raises(UserError, match="prior: it is for classes"):
        federation.predict(0, federation.sites[0].evaluation.x, prior="own")
