"""Identities between methods, and what each half of the contract may and may not do."""

import dataclasses
from typing import Any

import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.evaluation import headline
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, upload_bytes
from fedbnn.federation.method import Method, State
from fedbnn.federation.parties import Client
from fedbnn.methods import FedBNNPaper, FedMD, Local, LocalBNN
from fedbnn.methods.alone import Alone
from fedbnn.methods.exchange import Exchange
from fedbnn.models.bayes import average
from tests.federation_sample import SMALL_METHODS, described, models_for, small_sites

RNG = Stream((0, "test"))


def client(**changes: Any) -> Client:
    return dataclasses.replace(small_sites(1, models=("mlp",))[0].client, **changes)


def same(one: State, other: State) -> bool:
    a, b = one.tensors(), other.tensors()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("federated", "alone"), [(FedBNNPaper(), LocalBNN()), (FedMD(learning_rate=1e-3), Local(learning_rate=1e-3))]
)
def test_the_warm_up_is_training_alone_bit_for_bit(federated: Method[Any, Any], alone: Method[Any, Any]) -> None:
    site = client()
    one = federated.client_update(federated.client_init(site), site, Message(), 0, RNG)
    other = alone.client_update(alone.client_init(site), site, Message(), 0, RNG)
    assert same(one.state, other.state)


def test_fedmd_without_digestion_is_local_training_bit_for_bit() -> None:
    sites = small_sites(3)
    fedmd = Federation(FedMD(digest_steps=0, learning_rate=1e-3), sites)
    local = Federation(Local(learning_rate=1e-3), sites)
    for one, other in zip(fedmd.run(2), local.run(2), strict=True):
        assert {c: headline(e).scores for c, e in one.scores.items()} == {
            c: headline(e).scores for c, e in other.scores.items()
        }


@pytest.mark.parametrize("method", [FedBNNPaper(gamma=0.0, prior_steps=5), FedMD(gamma=0.0, digest_steps=5)])
def test_with_gamma_zero_the_consensus_has_no_influence(method: Method[Any, Any]) -> None:
    site = client()
    state = method.client_init(site)
    shape = (len(site.alignment), site.classes)
    results = [
        method.client_update(state, site, Message({"phi_bar": torch.full(shape, value)}), 1, RNG).state
        for value in (-3.0, 4.0)
    ]
    assert same(*results)


@pytest.mark.parametrize("method", [FedBNNPaper(prior_steps=5), FedMD(digest_steps=5)])
def test_with_gamma_above_zero_the_consensus_has_influence(method: Method[Any, Any]) -> None:
    site = client()
    state = method.client_init(site)
    shape = (len(site.alignment), site.classes)
    consensus = [torch.zeros(shape), torch.eye(10)[torch.arange(shape[0]) % 10] * 5]
    one, other = (method.client_update(state, site, Message({"phi_bar": c}), 1, RNG).state for c in consensus)
    assert not same(one, other)


def test_a_class_never_seen_is_learned_through_the_consensus() -> None:
    """What the method is for: the client holds 3 classes; the consensus knows all ten."""
    site = dataclasses.replace(small_sites(1, models=("mlp",))[0].client)
    full = small_sites(1, models=("mlp",))[0]
    truth = torch.cdist(site.alignment.flatten(1), full.evaluation.x.flatten(1)).argmin(1)
    phi_bar = torch.eye(10)[full.evaluation.y[truth]] * 8
    method = FedBNNPaper(prior_steps=150)
    alone = method.client_update(method.client_init(site), site, Message(), 0, RNG).state
    taught = method.client_update(alone, site, Message({"phi_bar": phi_bar}), 1, RNG).state
    unseen = ~full.own
    scores = [
        (method.predict(state, site, full.evaluation.x, RNG).labels == full.evaluation.y)[unseen].float().mean()
        for state in (alone, taught)
    ]
    assert scores[0] < 0.2
    assert scores[1] > 0.4


def test_a_strong_anchor_keeps_the_posterior_at_the_prior() -> None:
    site = client()
    state = FedBNNPaper().client_init(site)
    phi_bar = torch.zeros(len(site.alignment), site.classes)
    kl = [
        FedBNNPaper(kl_weight=weight, prior_steps=1, prior_sd_floor=0.01)
        .client_update(state, dataclasses.replace(site), Message({"phi_bar": phi_bar}), 0, RNG)
        .info["kl"]
        for weight in (0.0, 1000.0)
    ]
    assert kl[1] < kl[0]


def test_local_training_begins_at_the_means_of_the_tuned_prior() -> None:
    training = dataclasses.replace(small_sites(1)[0].client.training, local_epochs=1)
    site = client(training=training)
    state = FedBNNPaper().client_init(site)
    message = Message({"phi_bar": torch.eye(10)[torch.arange(len(site.alignment)) % 10] * 5})
    method = FedBNNPaper(learning_rate=1e-12, prior_learning_rate=0.01)
    target = method.target(message, site, lambda: method.outputs(state.q, site, site.alignment, RNG.child("own")))
    assert target is not None
    psi, _ = method.tune_prior(state.q, target, site, RNG)
    q = method.client_update(state, site, message, 1, RNG).state.q
    torch.testing.assert_close(q.mean, psi.mean)
    torch.testing.assert_close(q.sd, state.q.sd)
    assert (q.mean - state.q.mean).abs().max() > 0.05


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_who_exchanges_outputs_sends_no_weights_and_who_is_alone_nothing(method: Method[Any, Any]) -> None:
    roster = roster_of(small_sites(3, models=models_for(method)))
    for index in range(3):
        size = upload_bytes(method.expected_upload(roster, index))
        if isinstance(method, Exchange):  # outputs on the alignment set, never weights
            assert size <= len(roster.alignment) * roster.classes * 4 + 4
        if isinstance(method, Alone):
            assert size == 0


def test_upload_is_the_mean_over_weight_draws_of_the_final_posterior() -> None:
    site, method = client(), FedBNNPaper(mc_samples=4)
    update = method.client_update(method.client_init(site), site, Message(), 0, RNG)
    again = method.predict(update.state, site, site.alignment, RNG.child("upload"))
    assert torch.equal(update.message.arrays["phi"], again.logits)


def test_absentees_last_upload_is_reused_and_strangers_do_not_count() -> None:
    method, roster = FedBNNPaper(), roster_of(small_sites(3))
    shape = (len(roster.alignment), roster.classes)
    sent = {c: Message({"phi": torch.full(shape, float(c + 1))}) for c in range(3)}
    state = method.server_update(method.server_init(roster), {0: sent[0], 1: sent[1]}, roster, RNG)
    assert state.phi_bar is not None
    assert state.phi_bar.eq(1.5).all()
    state = method.server_update(state, {1: Message({"phi": torch.full(shape, 5.0)})}, roster, RNG)
    assert state.phi_bar is not None
    assert state.phi_bar.eq(3.0).all()


def test_exchange_without_an_alignment_set_is_refused() -> None:
    roster = dataclasses.replace(roster_of(small_sites(2)), alignment=torch.zeros(0, 1, 8, 8))
    with pytest.raises(UserError, match=r"data\.alignment must be at least 1"):
        FedBNNPaper().server_init(roster)
    Local().server_init(roster)


def test_point_prediction_is_the_network_itself() -> None:
    site = client()
    state = Local().client_init(site)
    p = Local().predict(state, site, site.train.x, RNG)
    assert torch.equal(p.probs, average(site.network, iter([state.weights]), site.train.x).probs)
