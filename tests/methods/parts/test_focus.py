"""The target, turned towards a client's own classes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.methods.parts.focus import class_weights

counts = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any)


def labels_of(held: list[int]) -> torch.Tensor:
    return torch.arange(len(held)).repeat_interleave(torch.tensor(held))


@given(counts, st.floats(0, 1))
def test_class_weights_are_one_on_average_and_grow_with_the_share(held: list[int], focus: float) -> None:
    found = class_weights(labels_of(held), len(held), focus).double()
    assert found.mean().item() == pytest.approx(1, abs=1e-6)
    for c, count in enumerate(held):
        assert found[c].item() == pytest.approx(1 - focus + focus * len(held) * count / sum(held), abs=1e-5)


@given(counts)
def test_class_weights_at_the_ends(held: list[int]) -> None:
    labels, classes = labels_of(held), len(held)
    assert class_weights(labels, classes, 0.0).eq(1).all()
    assert torch.equal(class_weights(labels, classes, 1.0) == 0, torch.tensor(held) == 0)
    equal = torch.arange(classes).repeat(3)
    torch.testing.assert_close(class_weights(equal, classes, 1.0), torch.ones(classes))


def world(classes: int, points: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p(x | c), a row a class; p(x) where every class is equally often; p(c | x), a row a point."""
    given_class = torch.rand(classes, points, generator=torch.Generator().manual_seed(seed)).double() ** 3 + 1e-3
    given_class /= given_class.sum(1, keepdim=True)
    of_point = given_class.mean(0)
    return given_class, of_point, (given_class / classes / of_point).T


@given(counts, st.integers(1, 8), st.integers(0, 1000), st.floats(0, 1))
def test_the_turned_target_stands_for_the_clients_own_distribution(
    held: list[int], points: int, seed: int, focus: float
) -> None:
    """By enumeration: the loss over AD towards v * p is that over what the client itself draws, class by class."""
    classes = len(held)
    given_class, of_point, of_class = world(classes, points, seed)
    share = torch.tensor(held).double() / sum(held)
    joint = share.unsqueeze(1) * given_class  # the client draws a class, and a point of it
    own_point, own_class = joint.sum(0), (joint / joint.sum(0)).T
    torch.testing.assert_close(own_point, of_point * (of_class * classes * share).sum(1))  # as the docstring has it

    turned = of_class * class_weights(labels_of(held), classes, focus).double()
    model = torch.randn(points, classes, generator=torch.Generator().manual_seed(seed + 1)).double().log_softmax(1)
    found, over_ad, over_own = (
        -(weight * (target * model).sum(1)).sum()
        for weight, target in ((of_point, turned), (of_point, of_class), (own_point, own_class))
    )
    torch.testing.assert_close(found, (1 - focus) * over_ad + focus * over_own, rtol=1e-5, atol=1e-6)


@given(counts, st.integers(1, 8), st.integers(0, 1000))
def test_the_best_answer_to_a_fully_turned_target_is_the_clients_posterior(
    held: list[int], points: int, seed: int
) -> None:
    given_class, _, of_class = world(len(held), points, seed)
    turned = of_class * class_weights(labels_of(held), len(held), 1.0).double()
    joint = torch.tensor(held).double().unsqueeze(1) * given_class
    best = turned / turned.sum(1, keepdim=True)  # what minimises cross-entropy towards rows that are not normalised
    torch.testing.assert_close(best, (joint / joint.sum(0)).T, rtol=1e-5, atol=1e-6)
