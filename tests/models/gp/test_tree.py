import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.models.bayes import entropy
from fedbnn.models.gp.tree import Node, build_tree, leaf_entropy, leaf_probabilities

# Whole numbers make duplicates and ties frequent.
means = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=9).map(
    lambda rows: torch.tensor(rows, dtype=torch.float32)
)


def random_probs(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(means)
def test_the_nodes_split_the_classes_top_down_until_each_is_a_leaf_exactly_once(rows: torch.Tensor) -> None:
    nodes = build_tree(rows)
    assert len(nodes) == len(rows) - 1
    open_sides = {tuple(range(len(rows)))}
    for node in nodes:
        assert node.left
        assert node.right
        open_sides.remove(tuple(sorted(node.left + node.right)))  # a parent made this side before
        open_sides |= {node.left, node.right}
    assert open_sides == {(c,) for c in range(len(rows))}
    assert nodes == build_tree(rows)


@given(means, st.integers(0, 2**31))
def test_leaf_probabilities_are_a_distribution_and_products_along_the_path(rows: torch.Tensor, seed: int) -> None:
    nodes, classes = build_tree(rows), len(rows)
    right = random_probs(len(nodes), 6, seed=seed)
    probs = leaf_probabilities(nodes, classes, right)
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(1), torch.ones(6, dtype=torch.float64))
    for c in range(classes):
        path = [p if c in n.right else 1 - p for n, p in zip(nodes, right, strict=True) if c in n.left + n.right]
        product = torch.stack([torch.ones(6, dtype=torch.float64), *path]).prod(0)
        torch.testing.assert_close(probs[:, c], product)


@given(means, st.integers(0, 2**31))
def test_the_entropy_of_the_leaf_is_the_sum_over_reached_nodes(rows: torch.Tensor, seed: int) -> None:
    nodes = build_tree(rows)
    right = random_probs(len(nodes), 4, seed=seed)
    each = entropy(torch.stack([right.flatten(), 1 - right.flatten()], 1)).reshape(right.shape)
    whole = entropy(leaf_probabilities(nodes, len(rows), right))
    torch.testing.assert_close(leaf_entropy(nodes, right, each), whole)


def test_the_expected_entropy_equals_enumeration_over_independent_nodes() -> None:
    nodes = build_tree(torch.tensor([[0.0, 0], [0, 1], [5, 5], [5, 6], [9, 0]]))
    values, chances = random_probs(2, len(nodes)), random_probs(2, len(nodes), seed=1)  # P(right) takes two values
    chances = chances / chances.sum(0)
    expected = torch.zeros((), dtype=torch.float64)
    for outcome in itertools.product((0, 1), repeat=len(nodes)):
        pick = (torch.tensor(outcome), torch.arange(len(nodes)))
        expected += chances[pick].prod() * entropy(leaf_probabilities(nodes, 5, values[pick][:, None]))[0]
    h = entropy(torch.stack([values.flatten(), 1 - values.flatten()], 1)).reshape(values.shape)
    result = leaf_entropy(nodes, (chances * values).sum(0)[:, None], (chances * h).sum(0)[:, None])
    torch.testing.assert_close(result[0], expected)


def test_clusters_far_apart_are_split_first() -> None:
    rows = torch.tensor([[0.0, 0], [10, 10], [0, 1], [10, 11], [1, 0]])
    nodes = build_tree(rows)
    assert nodes[0] == Node((0, 2, 4), (1, 3))


def test_two_classes_make_one_node_and_one_class_none() -> None:
    assert build_tree(torch.randn(2, 3)) == (Node((0,), (1,)),)
    assert build_tree(torch.randn(1, 3)) == ()
    one = leaf_probabilities((), 1, torch.empty(0, 4))
    assert torch.equal(one, torch.ones(4, 1))
    assert torch.equal(leaf_entropy((), torch.empty(0, 4), torch.empty(0, 4)), torch.zeros(4))


@pytest.mark.parametrize("classes", [3, 4, 7])
def test_classes_with_the_same_mean_are_split_in_halves(classes: int) -> None:
    nodes = build_tree(torch.ones(classes, 2))
    assert nodes[0] == Node(tuple(range(classes // 2)), tuple(range(classes // 2, classes)))
