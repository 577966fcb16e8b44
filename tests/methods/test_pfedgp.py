"""pFedGP: what its trees say on real records, what training does, and the limits it keeps."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, Numbers
from fedbnn.federation.parties import Client
from fedbnn.methods import PFedGP
from fedbnn.methods import pfedgp as module
from fedbnn.methods.point import Point
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.gp import GPSettings, Kernel, fit_tree, predict_tree, tree_loss
from tests.federation_sample import first_message, small_sites

RNG = Stream((0, "test"))
SITES = small_sites(3, models=("cnn2",))
SMALL = PFedGP(embedding=8, train_chains=4, test_chains=5, gibbs_steps=3, learning_rate=0.1)


def embedded(client: Client, weights: Tensor, x: Tensor, outputs: int = 8) -> Tensor:
    network = client.network_with(outputs)
    network.module.eval()
    network.weights.copy_(weights)
    with torch.no_grad():
        return network.module(x)


def test_probabilities_are_a_distribution_over_the_classes_that_are_held() -> None:
    federation = Federation(SMALL, SITES)
    federation.step()
    for site in SITES:
        prediction = federation.predict(site.client.index, site.evaluation.x[:100])
        torch.testing.assert_close(prediction.probs.sum(1), torch.ones(100))
        held = torch.isin(torch.arange(10), site.client.train.y)
        assert int(held.sum()) == 3
        assert prediction.probs[:, ~held].eq(0).all()
        assert prediction.probs[:, held].gt(0).all()
        assert prediction.logits.isfinite().all()
        torch.testing.assert_close(prediction.logits[:, held].exp(), prediction.probs[:, held])
        assert (prediction.aleatoric > 0).all()
        assert (prediction.aleatoric <= prediction.total + 1e-3).all()


def test_predictions_are_those_of_the_gaussian_process_tree_on_the_embedding() -> None:
    site = SITES[1]
    client, x = site.client, site.evaluation.x[:60]
    weights = first_message(SMALL, SITES).arrays["weights"]
    found = SMALL.predict(Point(weights), client, x, RNG)
    seen = embedded(client, weights, client.train.x)
    probs, aleatoric = predict_tree(
        seen,
        client.train.y,
        embedded(client, weights, x),
        10,
        fit_tree(seen, client.train.y),
        GPSettings(Kernel(outputscale=8.0, lengthscale=1.0), chains=5, gibbs_steps=3),
        RNG.child("gibbs").torch(),
        RNG.child("omega").numpy(),
    )
    torch.testing.assert_close(found.probs, probs)
    torch.testing.assert_close(found.aleatoric, aleatoric)


@pytest.mark.parametrize(
    "changes", [{"outputscale": 1.0}, {"lengthscale": 0.2}, {"gibbs_steps": 1}, {"test_chains": 2}]
)
def test_every_setting_of_the_process_reaches_it(changes: dict[str, Any]) -> None:
    client, weights = SITES[0].client, first_message(SMALL, SITES).arrays["weights"]
    x = SITES[0].evaluation.x[:20]
    one, other = (
        m.predict(Point(weights), client, x, RNG).probs for m in (SMALL, dataclasses.replace(SMALL, **changes))
    )
    assert not torch.equal(one, other)


def test_the_trees_accuracy_on_own_classes_is_far_above_chance() -> None:
    site = SITES[0]
    weights = first_message(SMALL, SITES).arrays["weights"]
    labels = SMALL.predict(Point(weights), site.client, site.evaluation.x[site.own], RNG).labels
    assert (labels == site.evaluation.y[site.own]).float().mean() > 0.6


def loss_at(client: Client, weights: Tensor) -> float:
    """The tree's loss, averaged over many chains and ways to halve the records, with randomness of its own."""
    vectors = embedded(client, weights, client.train.x)
    tree, settings = fit_tree(vectors, client.train.y), GPSettings(chains=20, gibbs_steps=5)
    normal, gamma = RNG.child("loss").torch(), RNG.child("loss").numpy()
    return sum(float(tree_loss(vectors, client.train.y, tree, settings, normal, gamma)) for _ in range(10)) / 10


def test_training_brings_the_trees_loss_down() -> None:
    client, start = SITES[2].client, first_message(SMALL, SITES)
    method = dataclasses.replace(SMALL, inner_steps=15, weight_decay=0.0)
    update = method.client_update(method.client_init(client), client, start, 1, RNG)
    before, after = loss_at(client, start.arrays["weights"]), loss_at(client, update.state.weights)
    assert after < 0.8 * before, (before, after)
    assert torch.equal(update.state.weights, update.message.arrays["weights"])
    assert update.message.arrays.keys() == {"weights"}


def test_one_step_is_gradient_descent_on_the_trees_loss() -> None:
    client, start = SITES[0].client, first_message(SMALL, SITES)
    theta = start.arrays["weights"]
    update = SMALL.client_update(SMALL.client_init(client), client, start, 1, RNG)
    network = client.network_with(8)
    tree = fit_tree(embedded(client, theta, client.train.x), client.train.y)
    network.gradient.zero_()
    loss = tree_loss(
        network.module(client.train.x),
        client.train.y,
        tree,
        GPSettings(chains=4, gibbs_steps=3),
        RNG.child("gibbs").torch(),
        RNG.child("omega").numpy(),
    )
    loss.backward()
    assert update.info["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    expected = theta - 0.1 * (network.gradient + 1e-3 * theta)
    assert (expected - theta).norm() > 1e-3
    torch.testing.assert_close(update.state.weights, expected, rtol=1e-4, atol=1e-6)


def test_a_gradient_is_cut_to_its_longest_length() -> None:
    client, start = SITES[0].client, first_message(SMALL, SITES)
    method = dataclasses.replace(SMALL, gradient_clip=1e-3, weight_decay=0.0)
    moved = (
        method.client_update(method.client_init(client), client, start, 1, RNG).state.weights - start.arrays["weights"]
    )
    assert float(moved.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-2)


def test_the_cap_on_records_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Tensor]] = {"train": [], "predict": []}

    def training(embeddings: Tensor, labels: Tensor, *rest: Any) -> Tensor:
        assert len(embeddings) == len(labels)
        seen["train"].append(labels)
        return tree_loss(embeddings, labels, *rest)

    def prediction(embeddings: Tensor, labels: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        assert len(embeddings) == len(labels)
        seen["predict"].append(labels)
        return predict_tree(embeddings, labels, *rest)

    monkeypatch.setattr(module, "tree_loss", training)
    monkeypatch.setattr(module, "predict_tree", prediction)
    client, message = SITES[0].client, first_message(SMALL, SITES)
    for cap, length in ((6, 6), (12, 12), (500, 12)):
        method = dataclasses.replace(SMALL, record_cap=cap, inner_steps=3)
        state = method.client_update(method.client_init(client), client, message, 1, RNG).state
        method.predict(state, client, client.train.x[:5], RNG)
        assert [len(labels) for labels in seen["train"]] == [length] * 3
        assert [len(labels) for labels in seen["predict"]] == [length]
        for labels in (*seen["train"], *seen["predict"]):
            counts = labels.unique(return_counts=True)[1]
            assert counts.tolist() == [length // 3] * 3  # as many of every class
        seen = {"train": [], "predict": []}


def test_records_are_drawn_anew_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[int]] = []

    def spy(*arguments: Any) -> Tensor:
        index = original(*arguments)
        drawn.append(index.tolist())
        return index

    original = module.subset
    monkeypatch.setattr(module, "subset", spy)
    client, message = SITES[0].client, first_message(SMALL, SITES)
    method = dataclasses.replace(SMALL, record_cap=6, inner_steps=4)
    state = method.client_update(method.client_init(client), client, message, 1, RNG).state
    assert len({tuple(index) for index in drawn}) > 1
    drawn.clear()
    x = client.train.x[:5]
    assert torch.equal(method.predict(state, client, x, RNG).probs, method.predict(state, client, x, RNG).probs)
    assert drawn[0] == drawn[1]


def test_a_client_with_one_class() -> None:
    """There is nothing to tell apart: certainty, and training that only decays the weights."""
    whole = SITES[0].client
    label = int(whole.train.y[0])
    client = dataclasses.replace(whole, train=whole.train.take((whole.train.y == label).nonzero()[:, 0]))
    message = first_message(SMALL, SITES)
    update = SMALL.client_update(SMALL.client_init(client), client, message, 1, RNG)
    theta = message.arrays["weights"]
    torch.testing.assert_close(update.state.weights, theta * (1 - 0.1 * 1e-3), rtol=1e-5, atol=1e-8)
    assert update.info["loss"] == 0
    prediction = SMALL.predict(update.state, client, SITES[0].evaluation.x[:7], RNG)
    assert torch.equal(prediction.probs, torch.eye(10)[[label] * 7])
    assert prediction.total.eq(0).all()
    assert prediction.epistemic.eq(0).all()


def test_a_client_with_one_record_of_each_class() -> None:
    whole = SITES[0].client
    firsts = torch.stack([(whole.train.y == label).nonzero()[0, 0] for label in whole.train.y.unique()])
    client = dataclasses.replace(whole, train=whole.train.take(firsts))
    update = SMALL.client_update(SMALL.client_init(client), client, first_message(SMALL, SITES), 1, RNG)
    assert update.state.weights.isfinite().all()
    probs = SMALL.predict(update.state, client, SITES[0].evaluation.x[:7], RNG).probs
    torch.testing.assert_close(probs.sum(1), torch.ones(7))


@pytest.mark.parametrize("embedding", [1, 8, 84])
@pytest.mark.parametrize("name", ["mlp", "cnn2"])
def test_the_embeddings_size_is_agreed(embedding: int, name: str) -> None:
    sites = small_sites(2, models=(name,))
    method, roster = PFedGP(embedding=embedding), roster_of(sites)
    size = sum(p.numel() for p in build(ModelSettings(name), (1, 8, 8), embedding).parameters())
    assert method.expected_upload(roster, 1) == {"weights": Numbers((size,))}
    assert method.server_init(roster).weights.shape == (size,)
    assert method.client_init(sites[1].client).weights.shape == (size,)


def test_scored_is_the_servers_newest_embedding() -> None:
    client = SITES[0].client
    newest = Message({"weights": first_message(SMALL, SITES).arrays["weights"] + 1})
    models = SMALL.scored(SMALL.client_init(client), client, newest, RNG)
    assert list(models) == ["personal"]
    assert torch.equal(models["personal"].weights, newest.arrays["weights"])
