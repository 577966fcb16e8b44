"""beta-PredBayes: product and mixture as its limits, its server in plain torch, and where its samples come from."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.methods import BetaPredBayes
from fedbnn.methods.beta_predbayes import interpolated
from fedbnn.models.architectures import build
from fedbnn.models.training import TrainingSettings
from tests.federation_sample import first_message, small_sites
from tests.plain_torch import default_layout, distance, flat, outputs, step_order, to_module, train

RNG = Stream((0, "beta"))
MODELS = ("mlp", "cnn2")


@pytest.fixture(scope="module")
def roster() -> Roster:
    return roster_of(small_sites(3, models=MODELS))


def distributions(clients: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(clients, 7, 4, dtype=torch.float64, generator=generator)).softmax(2)


@given(clients=st.integers(1, 6), seed=st.integers(0, 1000), beta=st.floats(0, 1))
def test_it_lies_between_the_product_and_the_mixture(clients: int, seed: int, beta: float) -> None:
    probs = distributions(clients, seed)
    product = probs.prod(0) / probs.prod(0).sum(1, keepdim=True)
    mixture = probs.mean(0)
    torch.testing.assert_close(interpolated(probs, 1.0).exp(), product)
    torch.testing.assert_close(interpolated(probs, 0.0).exp(), mixture)
    between = product**beta * mixture ** (1 - beta)
    torch.testing.assert_close(interpolated(probs, beta).exp(), between / between.sum(1, keepdim=True))


@given(clients=st.integers(1, 5), seed=st.integers(0, 1000))
def test_the_product_is_bayes_rule_for_independent_witnesses(clients: int, seed: int) -> None:
    """Clients that each saw another feature of a point, all classes equally likely before: p(y | all features)."""
    generator = torch.Generator().manual_seed(seed)
    likelihoods = torch.rand(clients, 9, 3, dtype=torch.float64, generator=generator) + 0.05  # of each feature
    alone = likelihoods / likelihoods.sum(2, keepdim=True)
    exact = likelihoods.log().sum(0).softmax(1)
    torch.testing.assert_close(interpolated(alone, 1.0).exp(), exact)


def test_a_class_that_one_client_rules_out_is_no_division_by_zero() -> None:
    probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    for beta in (0.0, 0.5, 1.0):
        torch.testing.assert_close(interpolated(probs, beta).exp(), torch.tensor([[0.5, 0.5]], dtype=torch.float64))


def replies_of(roster: Roster, samples: int) -> dict[int, Message]:
    normal, replies = RNG.child("replies").torch(), {}
    for i in range(roster.clients):
        start = roster.initial_weights(i)
        drawn = start + 0.1 * torch.randn(samples, len(start), generator=normal)
        replies[i] = Message({"samples": drawn, "records": torch.tensor([5.0 + 4 * i])})
    return replies


def plain_students(method: BetaPredBayes, roster: Roster) -> list[Tensor]:
    """Of clients 0 and 2 together, and of client 1."""
    shape, x = tuple(roster.alignment.shape[1:]), default_layout(roster.alignment)
    modules = [build(roster.models[i], shape, roster.classes) for i in (0, 1)]
    sent = {i: reply.arrays["samples"] for i, reply in replies_of(roster, method.samples).items()}
    said = [
        torch.stack([outputs(to_module(w, modules[i % 2]), x).double().softmax(1) for w in sent[i]]).mean(0)
        for i in sent
    ]
    product = said[0] * said[1] * said[2]
    joined = (product / product.sum(1, keepdim=True)) ** method.beta * (sum(said) / 3) ** (1 - method.beta)
    target = (joined / joined.sum(1, keepdim=True)).float()
    starts = [(5 * sent[0].mean(0) + 13 * sent[2].mean(0)) / 18, sent[1].mean(0)]
    students = []
    for number, (module, start) in enumerate(zip(modules, starts, strict=True)):
        before = distance(target.log(), outputs(to_module(start, module), x))
        order = step_order(len(x), method.distill_steps, method.distill_batch, RNG.child("distil", number).torch())
        train(module, x, target, order, method.distill_learning_rate)
        assert distance(target.log(), outputs(module, x)) < before
        students.append(flat(module.parameters()))
    return students


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_the_servers_turn_is_what_plain_torch_makes_of_it(roster: Roster, beta: float) -> None:
    method = BetaPredBayes(beta=beta, samples=3, distill_steps=6, distill_batch=16)
    state = method.server_update(method.server_init(roster), replies_of(roster, 3), roster, RNG)
    undistilled = dataclasses.replace(method, distill_steps=0)
    begun = undistilled.server_update(method.server_init(roster), replies_of(roster, 3), roster, RNG)
    wrong = plain_students(dataclasses.replace(method, beta=0.7), roster)
    for i, expected in enumerate(plain_students(method, roster)):
        moved = (expected - begun.of(i)).norm()
        assert (state.of(i) - expected).norm() < 1e-3 * moved
        assert (state.of(i) - wrong[i]).norm() > 1e-2 * moved


def test_with_one_client_and_one_sample_the_student_is_that_sample() -> None:
    """Bit for bit: distillation cannot come nearer to a target that is the student's own answer."""
    [site] = small_sites(1, models=("mlp",))
    method, roster = BetaPredBayes(samples=1, distill_steps=5), roster_of([site])
    state = method.server_init(roster)
    update = method.client_update(method.client_init(site.client), site.client, method.broadcast(state, 0), 0, RNG)
    after = method.server_update(state, {0: update.message}, roster, RNG)
    assert torch.equal(after.of(0), update.message.arrays["samples"][0])
    assert not torch.equal(after.of(0), state.of(0))


@pytest.mark.parametrize(("epochs", "different"), [(1, 2), (2, 3), (6, 4)])
def test_samples_are_as_different_as_steps_allow(epochs: int, different: int) -> None:
    """Three minibatches an epoch, of which the first half is the burn-in."""
    client = small_sites(1, models=("mlp",), batch_size=5)[0].client
    client = dataclasses.replace(client, training=TrainingSettings(local_epochs=epochs, batch_size=5))
    method = BetaPredBayes(samples=4)
    message = first_message(method, small_sites(1, models=("mlp",)))
    samples = method.client_update(method.client_init(client), client, message, 1, RNG).state.samples
    assert len(samples) == 4
    assert len(samples.unique(dim=0)) == different
    last = BetaPredBayes(samples=1, burn_in=0.9)
    [end] = last.client_update(last.client_init(client), client, message, 1, RNG).state.samples
    assert torch.equal(samples[-1], end)


def test_a_clients_answer_is_the_mean_over_its_samples() -> None:
    [site] = small_sites(1, models=("mlp",))
    method = BetaPredBayes(samples=3, temperature=1.0)
    message = first_message(method, [site])
    state = method.client_update(method.client_init(site.client), site.client, message, 0, RNG).state
    answer = method.predict(state, site.client, site.evaluation.x, RNG)
    each = [
        method.predict(dataclasses.replace(state, samples=w[None]), site.client, site.evaluation.x, RNG)
        for w in state.samples
    ]
    torch.testing.assert_close(answer.probs, torch.stack([one.probs for one in each]).mean(0))
    assert float(answer.epistemic.max()) > 0
