"""FML: training alone and FedAvg are its limits, and two networks that only hear each other agree in the end."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.methods import FML, FedAvg, Local
from fedbnn.methods.mutual import divergence
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.bayes import logits_of
from fedbnn.models.training import Records, TrainingSettings
from tests.federation_sample import first_message, small_sites, unequal, with_client
from tests.regression_sample import linear_sites

RNG = Stream((0, "test"))


def test_divergence_is_kullback_leibler_and_moves_only_the_student() -> None:
    teacher, student = (torch.randn(7, 4, generator=RNG.child(k).torch()).requires_grad_() for k in range(2))
    found = divergence(teacher, student)
    wanted = kl_divergence(Categorical(logits=teacher), Categorical(logits=student)).mean()
    torch.testing.assert_close(found, wanted)
    found.backward()
    assert teacher.grad is None
    torch.testing.assert_close(student.grad, (student.softmax(1) - teacher.softmax(1)).detach() / 7)


def test_with_alpha_one_the_own_network_is_trained_alone_bit_for_bit() -> None:
    sites = small_sites(3, batch_size=5)
    mutual = Federation(FML(alpha=1.0, learning_rate=1e-3), sites).run(2)
    alone = Federation(Local(learning_rate=1e-3), sites).run(2)
    for one, other in zip(mutual, alone, strict=True):
        for client, found in one.scores.items():
            assert found["personal"].scores == other.scores[client]["personal"].scores


def test_with_beta_one_the_messenger_is_fedavgs_bit_for_bit() -> None:
    """Also where it is of the same architecture as the client's own network."""
    sites = unequal(small_sites(3, models=("cnn2", "mlp"), batch_size=5), (12, 7, 3))
    method, roster = FML(beta=1.0, alpha=0.2, learning_rate=1e-3, messenger="cnn2"), roster_of(sites)
    fedavg, alike = FedAvg(learning_rate=1e-3), [with_client(site, model=ModelSettings("cnn2")) for site in sites]
    message = method.broadcast(method.server_init(roster), 0)
    replies, others = {}, {}
    for site, same in zip(sites, alike, strict=True):
        one, two = site.client, same.client
        replies[one.index] = method.client_update(method.client_init(one), one, message, 1, RNG).message
        others[two.index] = fedavg.client_update(fedavg.client_init(two), two, message, 1, RNG).message
    mine = method.server_update(method.server_init(roster), replies, roster, RNG).weights
    theirs = fedavg.server_update(fedavg.server_init(roster_of(alike)), others, roster_of(alike), RNG).weights
    assert torch.equal(mine, theirs)
    assert not torch.equal(mine, message.arrays["weights"])


def test_with_both_weights_zero_labels_have_no_influence_and_the_two_come_nearer() -> None:
    site = with_client(small_sites(1, models=("mlp",))[0], training=TrainingSettings(local_epochs=20, batch_size=12))
    client, method = site.client, FML(alpha=0.0, beta=0.0, learning_rate=1e-3)
    lying = dataclasses.replace(client, train=Records(client.train.x, 9 - client.train.y))
    message, state = first_message(method, [site]), method.client_init(client)
    honest, other = (method.client_update(state, one, message, 1, RNG) for one in (client, lying))
    assert state.weights is not None
    assert torch.equal(honest.message.arrays["weights"], other.message.arrays["weights"])
    assert honest.state.weights is not None
    assert other.state.weights is not None
    assert torch.equal(honest.state.weights, other.state.weights)

    def apart(own: Tensor, sent: Tensor) -> float:
        mine = logits_of(client.network, own, client.train.x)
        its = logits_of(method.messenger_network(client), sent, client.train.x)
        return float(kl_divergence(Categorical(logits=mine), Categorical(logits=its)).mean())

    before = apart(state.weights, message.arrays["weights"])
    assert apart(honest.state.weights, honest.message.arrays["weights"]) < 0.2 * before


def test_the_messenger_fits_the_records_unless_it_is_named() -> None:
    assert FML().messenger_model((1, 8, 8)).name == "cnn2"
    assert FML().messenger_model((3, 3, 8)).name == FML().messenger_model((12,)).name == "mlp"
    named = FML(messenger="gru", messenger_options={"hidden": 3}).messenger_model((1, 8, 8))
    assert (named.name, named.options) == ("gru", {"hidden": 3})


def test_the_global_model_is_the_messenger_whatever_the_clients_network() -> None:
    sites = small_sites(2, models=("mlp", "cnn3"))
    method, client = FML(messenger="cnn2"), sites[1].client
    message = first_message(method, sites)
    scored = method.scored(method.client_init(client), client, message, RNG)
    as_fedavg = dataclasses.replace(client, model=ModelSettings("cnn2"))
    wanted = as_fedavg.says(iter([message.arrays["weights"]]), client.alignment)
    assert torch.equal(method.predict(scored["global"], client, client.alignment, RNG).probs, wanted.probs)
    own = client.says(iter([client.initial_weights()]), client.alignment)
    assert torch.equal(method.predict(scored["personal"], client, client.alignment, RNG).probs, own.probs)


def test_what_does_not_fit_is_refused_before_any_work() -> None:
    with pytest.raises(UserError, match="model 'nosuch'"):
        Federation(FML(messenger="nosuch"), small_sites(2))
    with pytest.raises(UserError, match="classification"):
        Federation(FML(), linear_sites())
    roster = roster_of(small_sites(2))
    one, two = roster.models
    bodies = dataclasses.replace(roster, models=(one, dataclasses.replace(two, body="efficientnet_lite0")))
    with pytest.raises(UserError, match="give all models one body, or none"):
        FML().server_init(bodies)
