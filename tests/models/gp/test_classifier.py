import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.models.bayes import entropy
from fedbnn.models.gp import ClassTree, GPSettings, Kernel, fit_tree, predict_tree, subset, tree_loss
from fedbnn.models.gp import classifier as module

SETTINGS = GPSettings(Kernel(lengthscale=0.5), chains=8, gibbs_steps=3)


def blobs(n: int, seed: int = 0, classes: tuple[int, ...] = (1, 4, 6)) -> tuple[torch.Tensor, torch.Tensor]:
    """Class i around the i-th axis of three; labels are global ids, and lengths are of no matter."""
    g = torch.Generator().manual_seed(seed)
    position = torch.arange(n) % len(classes)
    x = torch.eye(3)[position] + 0.15 * torch.randn(n, 3, generator=g)
    return x * (1 + 4 * torch.rand(n, 1, generator=g)), torch.tensor(classes)[position]


def generators(seed: int = 0) -> tuple[torch.Generator, np.random.Generator]:
    return torch.Generator().manual_seed(seed), np.random.default_rng(seed)


def predict(
    x: torch.Tensor, y: torch.Tensor, new: torch.Tensor, total: int = 8, settings: GPSettings = SETTINGS
) -> tuple[torch.Tensor, torch.Tensor]:
    return predict_tree(x, y, new, total, fit_tree(x, y), settings, *generators())


def test_separable_classes_are_told_apart_and_far_away_nothing_is_known() -> None:
    (x, y), (new, truth) = blobs(45), blobs(90, seed=1)
    probs, aleatoric = predict(x, y, new)
    assert (probs.argmax(1) == truth).float().mean() > 0.97
    away, away_aleatoric = predict(x, y, torch.tensor([[-1.0, -1.0, -1.0]]))
    assert entropy(away)[0] > entropy(probs).max()
    assert (entropy(away) - away_aleatoric)[0] > (entropy(probs) - aleatoric).max()
    # far away p is 1/2 at either node up to what reaches it: more than half of what three classes can leave open
    assert entropy(away)[0] > 0.5 * math.log(3)


def test_probabilities_are_a_distribution_over_the_classes_held() -> None:
    (x, y), (new, _) = blobs(30), blobs(20, seed=1)
    probs, aleatoric = predict(x, y, new)
    torch.testing.assert_close(probs.sum(1), torch.ones(20))
    assert torch.equal(probs[:, [0, 2, 3, 5, 7]], torch.zeros(20, 5))
    assert probs.dtype == aleatoric.dtype == torch.float32
    assert (aleatoric >= 0).all()
    assert (aleatoric <= entropy(probs) + 1e-3).all()  # up to the quadrature's error


def test_a_client_with_one_class_is_certain_of_it() -> None:
    x, _ = blobs(10)
    y = torch.full((10,), 3)
    assert fit_tree(x, y) == ClassTree((3,), ())
    probs, aleatoric = predict(x, y, x[:4])
    assert torch.equal(probs, torch.eye(8)[[3] * 4])
    assert torch.equal(aleatoric, torch.zeros(4))
    x.requires_grad_()
    loss = tree_loss(x, y, fit_tree(x, y), SETTINGS, *generators())
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_the_same_generators_give_the_same_bits() -> None:
    (x, y), (new, _) = blobs(30), blobs(20, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(predict(x, y, new), predict(x, y, new), strict=True))
    tree = fit_tree(x, y)
    losses = [tree_loss(x, y, tree, SETTINGS, *generators(seed)).item() for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), (new, _) = blobs(30), blobs(20, seed=1)
    whole = predict(x, y, new)
    monkeypatch.setattr(module, "_CHUNK", 1)
    for a, b in zip(whole, predict(x, y, new), strict=True):
        torch.testing.assert_close(a, b)


def test_a_node_without_records_answers_from_its_prior() -> None:
    x, y = blobs(30)
    tree = fit_tree(x, y)
    lost = [tree.classes[side[0]] for side in (tree.nodes[1].left, tree.nodes[1].right)]
    kept = ~torch.isin(y, torch.tensor(lost))
    probs, _ = predict_tree(x[kept], y[kept], x, 8, tree, SETTINGS, *generators())
    torch.testing.assert_close(probs[:, lost[0]], probs[:, lost[1]])
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs)))


def test_no_records_to_predict_is_no_mistake() -> None:
    x, y = blobs(30)
    probs, aleatoric = predict(x, y, x[:0])
    assert probs.shape == (0, 8)
    assert aleatoric.shape == (0,)


def test_the_gradient_of_the_loss_equals_finite_differences_at_fixed_omega(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(covariance: torch.Tensor, *args: object, chains: int, **rest: object) -> torch.Tensor:
        g = torch.Generator().manual_seed(9)
        return torch.rand(chains, len(covariance), dtype=torch.float64, generator=g) * 0.2 + 0.02

    monkeypatch.setattr(module, "gibbs", fixed)
    x, y = blobs(12)
    tree = fit_tree(x, y)
    assert torch.autograd.gradcheck(
        lambda x: tree_loss(x, y, tree, GPSettings(chains=3), *generators()), x.double().requires_grad_()
    )


def test_without_knowledge_the_loss_is_that_of_guessing_at_every_node() -> None:
    x, y = blobs(30)
    tree = fit_tree(x, y)
    blind = GPSettings(Kernel(outputscale=1e-9), chains=4, gibbs_steps=1)
    loss = tree_loss(x, y, tree, blind, *generators())
    assert loss.item() == pytest.approx((1 + 2 / 3) * math.log(2), abs=1e-4)  # all records, then two of three classes
    assert loss.dtype == x.dtype


def test_descending_the_loss_trains_an_embedding() -> None:
    """Eight dimensions of noise hide the one that tells the classes apart."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    inputs = torch.cat([(2.0 * y - 1)[:, None], 2 * torch.randn(40, 8, generator=g)], 1)
    layer = (0.3 * torch.randn(9, 4, generator=g)).requires_grad_()
    optimiser = torch.optim.Adam([layer], lr=0.05)
    torch_rng, numpy_rng = generators()
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        embeddings = inputs @ layer
        loss = tree_loss(embeddings, y, fit_tree(embeddings, y), SETTINGS, torch_rng, numpy_rng)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_single_records_zero_embeddings_and_one_sided_batches_do_no_harm() -> None:
    x, y = blobs(12)
    tree = fit_tree(x, y)
    lonely = torch.tensor([0, 1, 2, 3, 6, 9])  # class 4 and class 6 once each
    embeddings = x[lonely].clone()
    embeddings[3] = 0
    embeddings.requires_grad_()
    loss = tree_loss(embeddings, y[lonely], tree, SETTINGS, *generators())
    loss.backward()
    assert loss > 0
    assert embeddings.grad.isfinite().all()
    assert torch.equal(embeddings.grad[3], torch.zeros(3))
    one_of_each = torch.tensor([0, 1, 2])
    assert tree_loss(x[one_of_each], y[one_of_each], tree, SETTINGS, *generators()).item() == 0
    one_class = y == 4
    assert tree_loss(x[one_class], y[one_class], tree, SETTINGS, *generators()).item() == 0


def test_a_label_that_the_tree_does_not_know_is_refused() -> None:
    x, y = blobs(12)
    tree = fit_tree(x, y)
    for stranger in (0, 5, 9):
        with pytest.raises(ValueError, match="not among the classes"):
            tree_loss(x, torch.full_like(y, stranger), tree, SETTINGS, *generators())


def test_halves_are_drawn_class_by_class() -> None:
    classes = torch.tensor([0] * 5 + [1] * 1 + [2] * 4)
    mask = module._half(classes, torch.Generator().manual_seed(0))
    assert torch.bincount(classes[mask], minlength=3).tolist() == [2, 0, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 2**31))
def test_the_subset_is_balanced_as_far_as_the_classes_allow(labels: list[int], cap: int, seed: int) -> None:
    y = torch.tensor(labels)
    index = subset(y, cap, torch.Generator().manual_seed(seed))
    assert len(index) == min(cap, len(y))
    assert torch.equal(index, index.unique())
    had, got = torch.bincount(y, minlength=5), torch.bincount(y[index], minlength=5)
    # who did not give all gave as much as the most generous, up to one
    assert (got[got < had] >= got.max() - 1).all()


def test_the_subset_is_random_and_whole_when_it_fits() -> None:
    y = torch.arange(100) % 4
    draws = [subset(y, 20, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.bincount(y[draws[0]]).tolist() == [5] * 4
    assert torch.equal(subset(y, 100, torch.Generator()), torch.arange(100))
