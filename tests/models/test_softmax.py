"""The softmax head against Newton's method on the objective as it is written, and its draws against their moments."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.models.softmax import Ground, Rows, curvature, draw_weights, logits, with_one
from fedbnn.models.softmax import fit_head as fit_on_ground
from tests.plain_head import least, objective


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Sayings(NamedTuple):
    """What is said at public points, and how much it counts."""

    features: Tensor
    v: Tensor
    strength: float


def fit_head(rows: Rows, penalty: float, sayings: Sayings | None = None) -> Tensor:
    """W as the module's docstring has it."""
    points = rows.features[:0] if sayings is None else sayings.features
    ground = Ground.of(points, 0.0 if sayings is None else sayings.strength, penalty)
    return ground.weights(fit_on_ground(rows, ground, None if sayings is None else sayings.v))


class Case(NamedTuple):
    """Rows, a penalty, and what is said at public points, if anything."""

    rows: Rows
    penalty: float
    sayings: Sayings | None

    @property
    def arguments(self) -> tuple[Tensor | float, ...]:
        """As the written-out objective takes them."""
        told = () if self.sayings is None else (self.sayings.features, self.sayings.v, self.sayings.strength)
        return (self.rows.features, self.rows.target, self.rows.offset, self.penalty, *told)

    def loss(self, weights: Tensor) -> Tensor:
        return objective(weights, *self.arguments)  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    seed, count, width = draw(st.integers(0, 10_000)), draw(st.integers(1, 15)), draw(st.integers(1, 5))
    classes = draw(st.integers(2, 4))
    features = draw(st.sampled_from([0.1, 1.0, 5.0])) * normal(count, width, seed=seed)
    target = one_hot(torch.arange(count) % classes, classes).double()
    if draw(st.booleans()):  # rows that are not normalised: their sum is their weight
        target = 3 * normal(count, classes, seed=seed + 1).softmax(1)
    offset = draw(st.sampled_from([0.0, 1.0, 4.0])) * normal(classes, seed=seed + 2)
    sayings = None
    if draw(st.booleans()):
        points = normal(draw(st.integers(1, 8)), width, seed=seed + 3)
        v = 3 * normal(len(points), classes, seed=seed + 4)
        sayings = Sayings(points, v, draw(st.sampled_from([1e-2, 1.0, 1e3])))
    return Case(Rows(features, target, offset), draw(st.sampled_from([0.03, 1.0, 30.0])), sayings)


def centred(weights: Tensor) -> Tensor:
    """What is added to all classes alike changes no loss, so optimisers may leave it where they began."""
    return weights - weights.mean(1, keepdim=True)


@given(cases())
def test_no_slope_is_left_where_it_ends(case: Case) -> None:
    weights = fit_head(case.rows, case.penalty, case.sayings).requires_grad_()
    case.loss(weights).backward()
    assert weights.grad is not None
    size = 1 + float(with_one(case.rows.features).square().sum().sqrt())  # of a row that is told wrongly
    assert float(weights.grad.abs().max()) < 1e-5 * size


@settings(max_examples=25)
@given(cases())
def test_it_is_where_newtons_method_ends(case: Case) -> None:
    z, target, offset, penalty, *told = case.arguments
    found, expected = fit_head(*case), least(z, target, offset, penalty, *told)  # type: ignore[arg-type]
    torch.testing.assert_close(case.loss(found), case.loss(expected), rtol=1e-6, atol=1e-6)
    said = [(logits(w, case.rows.features) + case.rows.offset).softmax(1) for w in (found, expected)]
    torch.testing.assert_close(*said, rtol=0, atol=1e-4)


@pytest.mark.parametrize("told", [False, True])
def test_many_features_and_few_records(told: bool) -> None:
    """As in use: more features than records, a one-hot target, some classes absent, a prior on labels."""
    z, points = normal(20, 30, seed=0), normal(40, 30, seed=1)
    target = one_hot(torch.arange(20) % 3, 4).double()
    offset = torch.tensor([1.3, 1.3, 1.3, 0.1], dtype=torch.float64).log()
    v = 2 * normal(40, 4, seed=2)
    sayings = Sayings(points, v, 5.0)
    found = fit_head(Rows(z, target, offset), 2.5, sayings if told else None)
    expected = least(z, target, offset, 2.5, *((points, v, 5.0) if told else ()))
    apart = logits(found, points).softmax(1) - logits(expected, points).softmax(1)
    assert float(apart.abs().max()) < 1e-5


def test_with_features_that_say_nothing_it_gives_the_frequencies_of_the_classes() -> None:
    """Of labels whose prior is not that of the offset: the ratio of the two."""
    counts = torch.tensor([5.0, 3.0, 2.0], dtype=torch.float64)
    labels = torch.arange(3).repeat_interleave(counts.long())
    offset = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64)
    rows = Rows(torch.zeros(10, 2, dtype=torch.float64), one_hot(labels, 3).double(), offset)
    weights = fit_head(rows, 1.0)
    torch.testing.assert_close((weights[-1] + offset).softmax(0), counts / 10, rtol=0, atol=1e-3)
    assert weights[:-1].eq(0).all()


def test_what_is_said_with_endless_precision_is_said_again() -> None:
    """Where the points determine the weights; with none at all, the records alone count."""
    z, target, points = normal(12, 3, seed=0), one_hot(torch.arange(12) % 3, 3).double(), normal(9, 3, seed=1)
    truth = normal(4, 3, seed=2)
    rows = Rows(z, target, torch.zeros(3, dtype=torch.float64))
    v = logits(truth, points)
    torch.testing.assert_close(fit_head(rows, 1.0, Sayings(points, v, 1e10)), truth, rtol=0, atol=1e-5)
    alone, told = fit_head(rows, 1.0), fit_head(rows, 1.0, Sayings(points, v, 1e-10))
    torch.testing.assert_close(logits(alone, z).softmax(1), logits(told, z).softmax(1), rtol=0, atol=1e-5)


def test_a_row_of_twice_the_weight_counts_as_two_rows() -> None:
    z, target = normal(6, 3, seed=0), one_hot(torch.arange(6) % 3, 3).double()
    nothing = torch.zeros(3, dtype=torch.float64)
    once = fit_head(Rows(z, target * torch.tensor([2.0, 1, 1, 1, 1, 1]).unsqueeze(1).double(), nothing), 1.0)
    twice = fit_head(Rows(torch.cat([z, z[:1]]), torch.cat([target, target[:1]]), nothing), 1.0)
    torch.testing.assert_close(centred(once), centred(twice), rtol=0, atol=1e-6)


def test_the_head_lies_in_one_piece_as_files_want_it() -> None:
    rows = Rows(normal(6, 3, seed=0), one_hot(torch.arange(6) % 3, 3).double(), torch.zeros(3, dtype=torch.float64))
    assert fit_head(rows, 1.0).is_contiguous()


def test_draws_have_the_mean_and_the_covariance_that_they_are_asked_for() -> None:
    weights, count = normal(4, 2, seed=0), 40_000
    precision = curvature(normal(9, 3, seed=1), 0.7)
    precision.diagonal().add_(0.5)
    drawn = draw_weights(weights, precision, count, torch.Generator().manual_seed(3))
    assert drawn.shape == (count, 4, 2)
    expected = torch.linalg.inv(precision)
    off = drawn - weights
    sds = expected.diagonal().sqrt()
    assert float((off.mean(0).abs() / sds.unsqueeze(1)).max()) < 5 / count**0.5
    for c in range(2):
        # The variance of a product of two Gaussians, v_i v_j + v_ij^2, is at most twice v_i v_j.
        found = off[:, :, c].T @ off[:, :, c] / count
        assert float(((found - expected) / torch.outer(sds, sds)).abs().max()) < 5 * (2 / count) ** 0.5
    between = off[:, :, 0].T @ off[:, :, 1] / count  # columns are drawn each by itself
    assert float((between / torch.outer(sds, sds)).abs().max()) < 5 / count**0.5


def test_the_curvature_of_rows_is_a_sum_over_them() -> None:
    z = normal(5, 3, seed=0)
    expected = sum(0.3 * torch.outer(row, row) for row in with_one(z))
    torch.testing.assert_close(curvature(z, 0.3), expected)
    torch.testing.assert_close(curvature(z[:2], 0.3) + curvature(z[2:], 0.3), expected)
