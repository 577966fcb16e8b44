"""The head's mathematics: what one record can contribute at most, and what a step does with a noisy sum."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn import functional

from fedbnn.privacy import head as module
from fedbnn.privacy.head import MOMENTS, TEACHER, Recipe, Shape, contributions, improved
from fedbnn.privacy.sums import grid_sum

SHAPE = Shape(4, 3)
RECIPES = (TEACHER, MOMENTS)

tame = st.floats(-2, 2)
wild = st.one_of(
    tame,
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1e-300, 1e-160, 1e160, 1e308, -1e308, 88.0, -800.0]),
)
labels = st.integers(-2, 4) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def records(draw, elements=wild, most=6):
    count = draw(st.integers(1, most))
    phi = draw(arrays(np.float64, (count, 4), elements=elements))
    y = draw(st.lists(labels, min_size=count, max_size=count))
    return torch.from_numpy(phi), torch.tensor(y)


def heads(elements=wild):
    return arrays(np.float64, (4, 3), elements=elements).map(torch.from_numpy)


def within(difference, sensitivity):
    """Whether whole numbers are no longer than the sensitivity, in exact arithmetic."""
    return sum(n * n for n in difference.tolist()) <= (Fraction(sensitivity) * 2**32) ** 2


def random_problem(features=6, classes=4, points=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(points, features, generator=generator, dtype=torch.float64)
    phi = phi * torch.logspace(0, -1, features, dtype=torch.float64)
    phi = phi / phi.norm(dim=1, keepdim=True)
    y = torch.randint(classes, (points,), generator=generator)
    return phi, y, Shape(features, classes)


def moments_of(phi):
    return torch.linalg.eigh(phi.T @ phi / len(phi))


def total_of(gradient, count, shape):
    return torch.cat([gradient.flatten(), torch.tensor([count * shape.count_weight], dtype=torch.float64)])


# What a record contributes


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_sizes(classes):
    shape = Shape(101, classes)
    assert (
        shape.numbers
        == 101 * classes + 1
        == len(contributions(torch.ones(1, 101), torch.zeros(1).long(), shape.empty(), shape)[0])
    )
    assert shape.clip == math.sqrt(1 - 1 / classes)
    assert shape.sensitivity == pytest.approx(math.sqrt(shape.clip**2 + shape.count_weight**2), rel=1e-15)
    assert shape.sensitivity < 1.06 * shape.clip
    assert not shape.empty().any()


@given(records(), heads())
def test_no_record_contributes_more_than_the_sensitivity(data, head):
    """Whatever features, labels and the server's head are: NaN, infinite, huge, out of range."""
    phi, y = data
    found = contributions(phi, y, head, SHAPE)
    assert found.dtype == torch.float64
    assert found.isfinite().all()
    for row in found:
        assert sum(Fraction(v) ** 2 for v in row.tolist()) <= Fraction(SHAPE.sensitivity) ** 2
        assert within(grid_sum(row.unsqueeze(0)), SHAPE.sensitivity)


@given(records(), heads(tame))
@example((torch.full((1, 4), 1e-183, dtype=torch.float64), torch.tensor([0])), torch.zeros(4, 3))
def test_a_record_without_finite_numbers_features_or_label_contributes_zero(data, head):
    phi, y = data
    found = contributions(phi, y, head, SHAPE)
    lengths = torch.stack([torch.linalg.vector_norm(row) for row in phi])  # zero also where all squares underflow
    usable = (lengths > 0) & lengths.isfinite() & (y >= 0) & (y < 3)
    assert not found[~usable].any()
    assert torch.equal(found[usable][:, -1], torch.full_like(found[usable][:, -1], SHAPE.count_weight * (1 - 1e-9)))


def test_with_a_head_that_is_not_finite_nobody_contributes():
    phi, y, shape = random_problem()
    for value in (math.nan, math.inf, -math.inf):
        head = torch.full((6, 4), value)
        assert not contributions(phi, y, head, shape).any()


def test_one_record_cannot_spoil_the_others():
    phi, y, shape = random_problem()
    expected = contributions(phi, y, shape.empty(), shape)
    for value in (math.nan, math.inf, 1e300):
        spoiled = phi.clone()
        spoiled[7] = value
        found = contributions(spoiled, y, shape.empty(), shape)
        assert torch.equal(torch.cat([found[:7], found[8:]]), torch.cat([expected[:7], expected[8:]]))
        assert not found[7].any()


def gradients(phi, y, head):
    """The negative gradient of each record's cross-entropy in the head, by autograd."""
    rows = []
    for one, label in zip(phi, y, strict=True):
        weights = head.clone().requires_grad_()
        functional.cross_entropy((one @ weights).unsqueeze(0), label.unsqueeze(0)).backward()
        rows.append(-weights.grad.flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("scale", [0.0, 0.3, 5.0, 40.0])
@pytest.mark.parametrize("length", [1.0, 0.4])
def test_a_contribution_is_the_gradient_of_the_cross_entropy_cut_to_the_clip(scale, length):
    phi, y, shape = random_problem()
    phi = phi * length
    head = scale * torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = contributions(phi, y, head, shape)
    expected = gradients(phi, y, head)
    norms = expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found[:, :-1], expected * (shape.clip / norms).clamp_max(1), rtol=2e-9, atol=1e-12)
    longest = float(norms.max())
    if scale == 0:  # nothing is cut at the head that knows nothing, and every gradient is as long as the clip
        torch.testing.assert_close(norms, torch.full_like(norms, shape.clip * length))
    elif scale >= 5 and length == 1:
        assert longest > shape.clip * 1.2  # here something was


def test_features_longer_than_one_are_shortened_first():
    phi, y, shape = random_problem()
    head = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(contributions(phi * 1e4, y, head, shape), contributions(phi, y, head, shape))


@given(records(), records(most=1), heads())
def test_neighbours_are_no_further_apart_than_the_sensitivity(data, more, head):
    """One record more, anywhere, in whole-number arithmetic: exact, whatever the other records are."""
    phi, y = data
    smaller = grid_sum(contributions(phi, y, head, SHAPE))
    larger = grid_sum(contributions(torch.cat([phi, more[0]]), torch.cat([y, more[1]]), head, SHAPE))
    assert within(larger - smaller, SHAPE.sensitivity)


def test_the_sensitivity_is_reached():
    """A smaller Delta would not do: at W = 0 a record of length one moves the sum by all of it, but for rounding."""
    phi, y, shape = random_problem()
    moved = grid_sum(contributions(phi[:1], y[:1], shape.empty(), shape)).double().norm() * 2.0**-32
    assert shape.sensitivity * (1 - 2e-9) < moved <= shape.sensitivity


# A step


@pytest.mark.parametrize("seed", [0, 1])
def test_without_noise_a_step_solves_least_squares(seed, monkeypatch):
    """Newton's step for the squared loss, whose gradient sum is S = Phi^T (T - Phi W), ends at the solution."""
    monkeypatch.setattr(module, "_LEAST_RIDGE", 1e-14)
    phi, y, shape = random_problem(seed=seed)
    target = functional.one_hot(y, 4).double()
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    total = total_of(phi.T @ (target - phi @ start.double()), len(phi), shape)
    found = improved(start, total, 0.0, moments_of(phi), shape, Recipe(step=1.0, caution=1.0))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), torch.linalg.lstsq(phi, target).solution, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_ridge_is_the_stated_one(recipe):
    phi, _, shape = random_problem()
    second = phi.T @ phi / len(phi)
    gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = improved(shape.empty(), total_of(gradient, 50.0, shape), 0.0, moments_of(phi), shape, recipe)
    expected = recipe.step * torch.linalg.solve(second + 1e-3 * torch.eye(6), gradient / 50)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sd", [0.1, 3.0, 16.0])
def test_with_noise_a_step_is_filtered(recipe, sd):
    """F = G (G^2 + r G + (k s)^2 I)^-1 with s = sd / n, in matrices and not by eigenvalues."""
    phi, _, shape = random_problem()
    second, count = phi.T @ phi / len(phi), 120.0
    gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    found = improved(start, total_of(gradient, count, shape), sd, moments_of(phi), shape, recipe)
    inside = second @ second + 1e-3 * second + (recipe.caution * sd / count) ** 2 * torch.eye(6)
    moved = second @ torch.linalg.inv(inside) @ gradient / count
    torch.testing.assert_close(found.double(), start.double() + recipe.step * moved, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_noisier_a_sum_the_shorter_the_step_and_in_the_end_there_is_none(recipe):
    phi, _, shape = random_problem()
    gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    total = total_of(10 * gradient, 120.0, shape)
    lengths = [
        float(improved(shape.empty(), total, sd, moments_of(phi), shape, recipe).norm())
        for sd in (0.0, 0.1, 1.0, 10.0, 100.0, 1e4, 1e8, 1e300)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 1
    assert lengths[-2] < 1e-5
    assert lengths[-1] == 0


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sd", [0.0, 5.0])
def test_turning_the_features_turns_the_head(recipe, sd):
    phi, y, shape = random_problem()
    turn, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64))
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    heads_found = []
    for basis in (torch.eye(6, dtype=torch.float64), turn):
        features, head = phi @ basis, basis.T @ start
        total = contributions(features, y, head, shape).sum(0)
        heads_found.append(basis @ improved(head, total, sd, moments_of(features), shape, recipe).double())
    torch.testing.assert_close(heads_found[0], heads_found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("count", [0.0, -1e6, -3.0, 1e-9])
@pytest.mark.parametrize("sd", [0.0, 4.0])
def test_a_count_below_its_noise_counts_as_its_noise(recipe, count, sd):
    """Neither a division by nothing nor a step in the wrong direction."""
    phi, _, shape = random_problem()
    gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = improved(shape.empty(), total_of(gradient, count, shape), sd, moments_of(phi), shape, recipe)
    least = max(sd / shape.count_weight, 1.0)
    expected = improved(shape.empty(), total_of(gradient, least, shape), sd, moments_of(phi), shape, recipe)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected)
    assert (found.double() * gradient).sum() > 0


def test_directions_that_the_alignment_set_does_not_have_are_left_alone():
    phi, _, shape = random_problem()
    phi[:, 4:] = 0
    gradient = torch.ones(6, 4, dtype=torch.float64)
    values, vectors = moments_of(phi)
    found = improved(shape.empty(), total_of(gradient, 9.0, shape), 0.0, (values.clamp_min(0), vectors), shape, TEACHER)
    assert found.isfinite().all()
    assert found[:4].abs().min() > 0.01
    assert found[4:].abs().max() < 1e-6


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_from_clean_sums_learn(recipe):
    """Labels from a linear rule: the first step already finds most of it, five nearly all."""
    phi, _, shape = random_problem(points=600, seed=2)
    truth = torch.randn(6, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    y = (phi @ truth).argmax(1)
    head, losses = shape.empty(), []
    for _ in range(6):
        losses.append(float(functional.cross_entropy(phi @ head.double(), y)))
        head = improved(head, contributions(phi, y, head, shape).sum(0), 0.0, moments_of(phi), shape, recipe)
    assert losses[0] == pytest.approx(math.log(4))
    assert losses[1] < 0.75 * losses[0]
    assert losses[5] < losses[1]
    assert ((phi @ head.double()).argmax(1) == y).double().mean() > 0.93
