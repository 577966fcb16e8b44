"""The consensus rehearsed in local training: the loss of a mixed minibatch, and what it is good for."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods import FedBNN, FedBNNPaper
from fedbnn.methods.bayesian import Posterior
from fedbnn.methods.consensus import target_of
from fedbnn.methods.rehearsal import Rehearsal, mixed
from fedbnn.models.bayes import Anchor, Gaussian, fit, tune_prior
from fedbnn.models.training import Records, channels_last, epochs
from tests.federation_sample import small_sites

RNG = Stream((0, "test"))
CLASSES = 4


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0, 5), st.booleans(), st.booleans(), st.integers(0, 1000))
def test_the_loss_of_a_mixed_minibatch_is_the_weighted_sum(own_size, other_size, weight, normalised, offset, seed):
    rng = torch.Generator().manual_seed(seed)
    network = torch.nn.Linear(12, CLASSES)

    def images(count: int) -> torch.Tensor:
        return channels_last(torch.randn(count, 3, 2, 2, generator=rng))

    labels = torch.randint(0, CLASSES, (own_size,), generator=rng)
    own = Records(images(own_size), labels, torch.randn(CLASSES, generator=rng) if offset else None)
    rows = torch.rand(other_size, CLASSES, generator=rng)
    other = Records(images(other_size), rows / rows.sum(1, keepdim=True) if normalised else 3 * rows)
    found = mixed(own, other, weight, CLASSES)

    def logits(records: Records) -> torch.Tensor:
        return network(records.x.flatten(1))

    # The offset is that of own records alone: the consensus is not of the client's label prior.
    of_own = functional.cross_entropy(logits(own) + (own.offset if offset else 0), labels)
    of_other = functional.cross_entropy(logits(other), other.y)
    torch.testing.assert_close(found.loss(logits(found)), of_own + weight * of_other)
    assert len(found) == own_size + other_size
    assert torch.equal(found.x, torch.cat([own.x, other.x]))
    assert found.x.is_contiguous(memory_format=torch.channels_last)


def from_its_parts(method: FedBNNPaper, state: Posterior, client: Client, phi_bar: torch.Tensor) -> torch.Tensor:
    """The round without rehearsal, put together from its parts."""
    own = method.predict(state, client, client.alignment, RNG.child("own")).logits
    psi, _ = tune_prior(
        client.network,
        state.q,
        Records(client.alignment, target_of(phi_bar, own, method.gamma, "mean_logits")),
        count=method.prior_steps,
        batch_size=method.prior_batch,
        learning_rate=method.prior_learning_rate,
        order=RNG.child("prior order").torch(),
        noise=RNG.child("prior weights").torch(),
    )
    q, _ = fit(
        client.network,
        Gaussian(torch.cat([psi.mean, state.q.rho])),
        epochs(client.train, client.training.local_epochs, client.training.batch_size, RNG.child("order").torch()),
        learning_rate=method.learning_rate,
        generator=RNG.child("weights").torch(),
        anchor=Anchor(psi.with_sd_at_least(method.prior_sd_floor), method.kl_weight / len(client.train)),
    )
    return q.theta


SETTINGS = {"prior_steps": 3, "mc_samples": 2}


@pytest.mark.parametrize("batch_size", [5, 16])  # the last minibatch of 12 records is shorter, or the only one
def test_the_papers_method_is_its_two_steps_bit_for_bit(batch_size):
    client = small_sites(1, models=("cnn2",), batch_size=batch_size)[0].client
    method, phi_bar = FedBNNPaper(**SETTINGS), torch.eye(10)[torch.arange(30) % 10] * 5
    state, message = method.client_init(client), Message({"phi_bar": phi_bar})
    expected = from_its_parts(method, state, client, phi_bar)
    assert torch.equal(method.client_update(state, client, message, 1, RNG).state.theta, expected)


def test_rehearsal_changes_what_is_learned_and_more_of_it_more():
    client = small_sites(1, models=("mlp",))[0].client
    message = Message({"phi_bar": torch.eye(10)[torch.arange(30) % 10] * 5})

    def after(weight: float) -> torch.Tensor:
        method = FedBNN(**SETTINGS, rehearsal=weight, network_every=1)
        return method.client_update(method.client_init(client), client, message, 1, RNG).state.theta

    none, some, much = after(0.0), after(0.1), after(10.0)
    assert 0 < (some - none).norm() < (much - none).norm()


def test_without_a_consensus_there_is_nothing_to_rehearse():
    client = small_sites(1, models=("mlp",))[0].client
    states = [
        (method := FedBNN(mc_samples=2, rehearsal=weight))
        .client_update(method.client_init(client), client, Message(), 0, RNG)
        .state.theta
        for weight in (0.0, 1.0)
    ]
    assert torch.equal(*states)


def test_one_step_of_rehearsal_is_a_step_on_the_stated_loss():
    """Adam's first step follows the sign of the gradient, and little noise is in the weights: checked by autograd."""
    client = small_sites(1, models=("mlp",), batch_size=12)[0].client  # one minibatch of all records
    client = dataclasses.replace(client, alignment=client.alignment[:12])
    method = FedBNN(kl_weight=0.0, learning_rate=1e-3, initial_rho=-30.0)
    target = torch.rand(12, 10, generator=torch.Generator().manual_seed(0))
    start = method.client_init(client).q
    prior = method.alone_prior(client)
    q, _ = method.train(start, prior, client, 1, RNG, Rehearsal(Records(client.alignment, target), 0.7))
    network = client.network
    network.weights.copy_(start.mean)
    network.gradient.zero_()
    loss = functional.cross_entropy(network(client.train.x), client.train.y)
    (loss + 0.7 * functional.cross_entropy(network(client.alignment), target)).backward()
    clear = network.gradient.abs() > 1e-4
    assert clear.float().mean() > 0.3
    torch.testing.assert_close((q.mean - start.mean)[clear], -1e-3 * network.gradient.sign()[clear], rtol=0, atol=1e-5)


def test_with_rehearsal_clients_stay_nearer_to_the_consensus():
    sites = small_sites(3)
    method = FedBNN(prior_steps=20, mc_samples=2, consensus="sharpened", gamma=1.0, head=False)
    federation = Federation(method, sites)
    federation.run(1)
    for site in sites:
        # More local training than in other tests: what is rehearsed must first be forgotten.
        client = dataclasses.replace(
            site.client, training=dataclasses.replace(site.client.training, local_epochs=20, batch_size=4)
        )
        message = method.broadcast(federation.server, client.index)
        state = federation.engine._host.states[client.index]
        apart = []
        for weight in (0.0, 1.0):
            told = dataclasses.replace(method, rehearsal=weight)
            new = told.client_update(state, client, message, 2, RNG).state
            probs = told.predict(new, client, client.alignment, RNG).probs
            apart.append(-(message.arrays["phi_bar"] * probs.clamp_min(1e-12).log()).sum(1).mean())
        assert apart[1] < apart[0] - 0.05
