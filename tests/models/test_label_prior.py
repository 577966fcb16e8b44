"""Priors over labels: own shares, estimates from unlabelled inputs, and what a user may ask for."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.models.label_prior import checked, estimate_prior, parsed, ratio, smoothed_shares, uniform

NAMES = ("cat", "dog", "a=b")


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(4, 6))
def test_shares_are_those_of_krichevsky_and_trofimov(labels: list[int], classes: int) -> None:
    found = smoothed_shares(torch.tensor(labels, dtype=torch.int64), classes)
    expected = [(labels.count(c) + 0.5) / (len(labels) + classes / 2) for c in range(classes)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert float(found.sum()) == pytest.approx(1)
    assert (found > 0).all()


def gaussians(prior: Tensor, trained: Tensor, count: int, apart: float, seed: int = 0) -> Tensor:
    """Exact p(y | x) under `trained` for x ~ N(apart * y, 1) of classes that are drawn from `prior`."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(prior, count, replacement=True, generator=rng)
    x = apart * labels.double() + torch.randn(count, generator=rng, dtype=torch.float64)
    logs = -((x[:, None] - apart * torch.arange(len(prior))) ** 2) / 2 + trained.log()
    return logs.softmax(1)


def log_likelihood(probs: Tensor, prior: Tensor, trained: Tensor) -> float:
    return float((probs * (prior / trained)).sum(1).log().sum())


@pytest.mark.parametrize("trained", [[0.5, 0.5], [0.2, 0.8]])
def test_a_shift_of_ten_to_one_is_found(trained: list[float]) -> None:
    truth, known = torch.tensor([10 / 11, 1 / 11]).double(), torch.tensor(trained).double()
    found = estimate_prior(gaussians(truth, known, 20_000, apart=2.0), known)
    torch.testing.assert_close(found, truth, rtol=0, atol=0.01)


def test_where_inputs_tell_their_class_the_estimate_counts_them() -> None:
    labels = torch.tensor([0] * 7 + [2] * 3)
    probs = torch.eye(3)[labels]
    torch.testing.assert_close(estimate_prior(probs, uniform(3)), torch.tensor([0.7, 0.0, 0.3]).double())


def test_where_inputs_tell_nothing_the_estimate_is_the_trained_prior() -> None:
    trained = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    torch.testing.assert_close(estimate_prior(trained.expand(9, 3), trained), trained)


def test_two_kinds_of_inputs_have_a_closed_form() -> None:
    """m of n inputs with p(0 | x) = a, the others with 1 - a, trained on halves: the likelihood's root in pi.

    With u = pi a + (1 - pi)(1 - a), the share of the first kind, the likelihood u^m (1 - u)^(n - m) peaks at u = m / n.
    """
    a, m, n = 0.8, 13, 20
    probs = torch.tensor([[a, 1 - a]] * m + [[1 - a, a]] * (n - m), dtype=torch.float64)
    expected = (m / n - (1 - a)) / (2 * a - 1)
    found = estimate_prior(probs, uniform(2))
    torch.testing.assert_close(found, torch.tensor([expected, 1 - expected]).double(), rtol=0, atol=1e-5)


@given(st.integers(0, 1000), st.integers(2, 5))
def test_no_step_lowers_the_likelihood(seed: int, classes: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    trained = torch.rand(classes, generator=rng, dtype=torch.float64).add(0.1)
    trained /= trained.sum()
    probs = torch.randn(20, classes, generator=rng, dtype=torch.float64).mul(2).softmax(1)
    reached = [log_likelihood(probs, estimate_prior(probs, trained, steps), trained) for steps in range(12)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(reached))
    end = estimate_prior(probs, trained)
    assert float(end.sum()) == pytest.approx(1)
    assert log_likelihood(probs, end, trained) >= reached[-1] - 1e-9


def test_an_estimate_needs_inputs() -> None:
    with pytest.raises(UserError, match="there are no inputs to estimate it from"):
        estimate_prior(torch.zeros(0, 3), uniform(3))


def test_a_ratio_is_finite_also_where_training_had_no_record() -> None:
    found = ratio(uniform(2), torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert found.isfinite().all()
    assert float(found[0]) == 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("own", "own"),
        ("uniform", "uniform"),
        ("estimate", "estimate"),
        ("2,1,1", [0.5, 0.25, 0.25]),
        (" 1 , 0 ,0", [1.0, 0.0, 0.0]),
        ("dog=3, cat=1", [0.25, 0.75, 0.0]),
        ("a=b=1,dog=1", [0.0, 0.5, 0.5]),
    ],
)
def test_what_a_user_may_ask_for(text: str, expected: Any) -> None:
    assert parsed(text, NAMES) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unform", "did you mean 'uniform'"),
        ("", "it is own, uniform, estimate, 3 shares"),
        ("1,2", "it has 2 shares, there are 3 classes"),
        ("1,x,2", "it is own, uniform, estimate, 3 shares"),
        ("1,-1,2", "at least 0"),
        ("nan,1,1", "at least 0"),
        ("inf,1,1", "at least 0"),
        ("0,0,0", "a sum above 0"),
        ("1e308,1e308,1e308", "a sum above 0 that is finite"),
        ("dgo=1", "no class 'dgo'.*did you mean 'dog'"),
        ("dog=1,2", "no class ''"),
        ("dog=much", "is not a class and its one share"),
        ("dog=1,dog=2", "is not a class and its one share"),
        ("dog=0", "a sum above 0"),
    ],
)
def test_anything_else_is_one_error(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parsed(text, NAMES)


@pytest.mark.parametrize("prior", [torch.tensor([3.0, 1.0]), (3, 1), [0.75, 0.25]])
def test_shares_are_normalised(prior: Any) -> None:
    assert checked(prior, 2) == [0.75, 0.25]


@pytest.mark.parametrize("prior", ["other", [1.0], [math.nan, 1.0], [[1.0], [2.0]], ["a", "b"], 3.0, torch.ones(2, 2)])
def test_what_is_no_prior_is_refused(prior: Any) -> None:
    with pytest.raises(UserError, match="prior"):
        checked(prior, 2)
