"""FedProto: prototypes in closed form, no pull without them, and a class that is learned from others' prototype."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.methods import FedProto
from fedbnn.methods.fedproto import Prototypes, apart, class_means, embedded, joined
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import TrainingSettings
from tests.federation_sample import first_message, small_sites, with_client
from tests.plain_torch import default_layout, epoch_order, from_module, to_module, train
from tests.regression_sample import linear_sites

RNG = Stream((0, "test"))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=4), st.integers(0, 999))
def test_joined_prototypes_are_the_means_over_all_records_of_all_clients(labels: list[list[int]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = [torch.randn(len(one), 5, generator=generator) for one in labels]
    sent = [class_means(mine, torch.tensor(one), 4) for mine, one in zip(z, labels, strict=True)]
    means, known = joined(torch.stack([m for m, _ in sent]), torch.stack([n for _, n in sent]))
    everybody, every_label = torch.cat(z), torch.tensor([label for one in labels for label in one])
    for label in range(4):
        held = everybody[every_label == label]
        assert bool(known[label]) == bool(len(held))
        torch.testing.assert_close(means[label], held.mean(0) if len(held) else torch.zeros(5), rtol=1e-4, atol=1e-5)


def test_the_pull_is_a_mean_square_over_the_records_whose_class_has_a_prototype() -> None:
    z, prototypes = torch.tensor([[1.0, 2.0], [5.0, 5.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    labels = torch.tensor([0, 1])
    assert float(apart(z, labels, prototypes, torch.tensor([1.0, 0.0]))) == (1 + 4) / 2 / 2
    assert float(apart(z, labels, prototypes, torch.tensor([1.0, 1.0]))) == ((1 + 4) / 2 + (16 + 16) / 2) / 2


@pytest.mark.parametrize("case", ["no strength", "no prototypes"])
def test_without_a_pull_it_is_training_alone(case: str) -> None:
    site = small_sites(1, models=("mlp",), batch_size=5)[0]
    client, method = (
        site.client,
        FedProto(embedding=6, learning_rate=3e-3, strength=0.0 if case == "no strength" else 5.0),
    )
    known = torch.ones(10) if case == "no strength" else torch.zeros(10)
    message, state = Message({"prototypes": torch.ones(10, 6), "known": known}), method.client_init(client)
    found = method.client_update(state, client, message, 1, RNG).state.weights
    module = to_module(state.weights, embedded(client.model, (1, 8, 8), 6, 10))
    order = epoch_order(len(client.train), 1, 5, RNG.child("order").torch())
    train(module, default_layout(client.train.x), client.train.y, order, 3e-3)
    torch.testing.assert_close(found, from_module(module), rtol=1e-4, atol=1e-6)


def test_a_stronger_pull_brings_embeddings_nearer_to_the_prototypes() -> None:
    training = TrainingSettings(local_epochs=30, batch_size=12)
    client = with_client(small_sites(1, models=("cnn2",))[0], training=training).client
    message = Message({"prototypes": torch.rand(10, 6, generator=RNG.torch()), "known": torch.ones(10)})
    distances = []
    for strength in (0.0, 0.3, 10.0):
        method = FedProto(embedding=6, learning_rate=3e-3, strength=strength)
        distances.append(method.client_update(method.client_init(client), client, message, 1, RNG).info["apart"])
    assert distances[0] > 1.3 * distances[1] > 1.3 * distances[2]


def test_a_class_nobody_who_replied_holds_keeps_its_prototype() -> None:
    method, roster = FedProto(embedding=2), roster_of(small_sites(2))
    before = Prototypes(torch.full((10, 2), 7.0), torch.tensor([1.0, 1.0] + [0.0] * 8))
    counts = torch.zeros(10)
    counts[1], counts[2] = 3.0, 4.0
    reply = Message({"prototypes": torch.full((10, 2), 2.0), "counts": counts})
    after = method.server_update(before, {1: reply}, roster, RNG)
    assert after.prototypes[:, 0].tolist() == [7.0, 2.0, 2.0, *[7.0] * 7]
    assert after.known.tolist() == [1.0, 1.0, 1.0, *[0.0] * 7]


def test_the_nearest_prototype_answers_and_unknown_classes_are_impossible() -> None:
    site = small_sites(1, models=("mlp",))[0]
    client, method = site.client, FedProto(embedding=6, answer="prototypes")
    state, x = method.client_init(client), site.evaluation.x[:20]
    with torch.no_grad():
        z = to_module(state.weights, embedded(client.model, (1, 8, 8), 6, 10))[:2](default_layout(x))
    prototypes, known = z[:10].clone(), torch.tensor([1.0] * 8 + [0.0] * 2)
    message = Message({"prototypes": prototypes, "known": known})
    probs = method.predict(method.scored(state, client, message, RNG)["personal"], client, x, RNG).probs
    wanted = torch.stack([torch.exp(-((z - c) ** 2).sum(1) / 2) for c in prototypes[:8]], 1)
    torch.testing.assert_close(probs[:, :8], wanted / wanted.sum(1, keepdim=True), rtol=1e-3, atol=1e-5)
    assert not probs[:, 8:].any()
    classifier = dataclasses.replace(method, answer="classifier")
    said = classifier.predict(classifier.scored(state, client, message, RNG)["personal"], client, x, RNG).probs
    with torch.no_grad():
        plain = to_module(state.weights, embedded(client.model, (1, 8, 8), 6, 10))(default_layout(x)).softmax(1)
    torch.testing.assert_close(said, plain, rtol=1e-4, atol=1e-6)
    unheard = method.scored(state, client, first_message(method, [site]), RNG)["personal"]
    assert torch.equal(method.predict(unheard, client, x, RNG).probs, said)


def test_architectures_may_differ_and_embeddings_of_a_class_meet() -> None:
    sites = small_sites(3, models=("mlp", "cnn2", "cnn3"))
    sites = [with_client(site, training=TrainingSettings(local_epochs=10, warmup_epochs=5)) for site in sites]
    apart_after = {}
    for strength in (0.0, 5.0):
        federation = Federation(FedProto(embedding=6, strength=strength, learning_rate=3e-3), sites)
        record = [federation.step(evaluate=False) for _ in range(4)][-1]
        apart_after[strength] = sum(turn.info["apart"] for turn in record.turns.values())
    assert apart_after[5.0] < 0.5 * apart_after[0.0]


def test_real_numbers_have_no_classes() -> None:
    with pytest.raises(UserError, match="method 'fedproto' is for classification"):
        Federation(FedProto(), linear_sites())


def test_a_model_of_ones_own_may_be_used() -> None:
    client = dataclasses.replace(small_sites(1)[0].client, model=ModelSettings("gru", options={"hidden": 5}))
    method = FedProto(embedding=3)
    update = method.client_update(method.client_init(client), client, first_message(method, small_sites(1)), 0, RNG)
    held = client.train.y.unique()
    assert update.message.arrays["counts"][held].min() > 0
    assert update.message.arrays["counts"].sum() == len(client.train)
