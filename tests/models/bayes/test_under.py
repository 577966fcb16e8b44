"""A prediction under another prior over labels."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.models.bayes import Prediction, entropy

PARTS = ("probs", "logits", "aleatoric", "draws")
ratios = st.lists(st.floats(1e-4, 1e4), min_size=4, max_size=4).map(lambda values: torch.tensor(values).double())


def drawn(seed: int, count: int = 3, records: int = 5, classes: int = 4) -> Prediction:
    logits = torch.randn(count, records, classes, generator=torch.Generator().manual_seed(seed)).mul(3)
    draws = logits.softmax(2)
    return Prediction(draws.mean(0), logits.mean(0), entropy(draws).mean(0), draws)


def posterior(x: Tensor, means: tuple[float, float], prior: tuple[float, float]) -> Tensor:
    """p(y | x) for x ~ N(means[y], 1) and y ~ prior, from the densities themselves."""
    joint = torch.stack(
        [share * torch.exp(-((x - mean) ** 2) / 2) for mean, share in zip(means, prior, strict=True)], 1
    )
    return joint / joint.sum(1, keepdim=True)


@given(st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_the_same_prior_changes_not_a_bit(seed: int, factor: float) -> None:
    one = drawn(seed)
    same = one.under(torch.full((4,), factor))
    assert all(torch.equal(getattr(same, part), getattr(one, part)) for part in PARTS)


def test_two_gaussians_under_one_prior_become_those_under_another() -> None:
    """Each draw is another pair of means, whose exact posterior under any prior is known."""
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    pairs = [(-1.0, 1.0), (-0.5, 2.0), (0.0, 0.3)]
    trained, asked = (0.5, 0.5), (0.9, 0.1)
    before, truth = (torch.stack([posterior(x, means, prior) for means in pairs]) for prior in (trained, asked))
    given_ = Prediction(before.mean(0), before.log().mean(0), entropy(before).mean(0), before)
    found = given_.under(torch.tensor(asked) / torch.tensor(trained))
    torch.testing.assert_close(found.draws, truth, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.probs, truth.mean(0), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.aleatoric, entropy(truth).mean(0), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.logits.softmax(1), truth.log().mean(0).softmax(1), rtol=1e-6, atol=1e-9)


@given(st.integers(0, 1000), st.integers(1, 4), ratios, ratios, st.floats(1e-3, 1e3))
def test_what_holds_under_any_prior(seed: int, count: int, one: Tensor, other: Tensor, factor: float) -> None:
    given_ = drawn(seed, count)
    found = given_.under(one)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(5))
    torch.testing.assert_close(found.draws.sum(2), torch.ones(count, 5))
    assert (found.epistemic >= 0).all()
    assert (found.aleatoric >= 0).all()
    assert (found.aleatoric <= found.total + 1e-5).all()
    assert found.logits.isfinite().all()
    torch.testing.assert_close(given_.under(one * factor).probs, found.probs)
    for again in (found.under(other), given_.under(other).under(one)):
        torch.testing.assert_close(again.probs, given_.under(one * other).probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.under(1 / one).probs, given_.probs, rtol=1e-3, atol=1e-5)


def test_without_draws_the_split_of_the_entropy_stays() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    found = Prediction.of(probs, 0.4 * entropy(probs)).under(torch.tensor([1.0, 5.0, 2.0]))
    torch.testing.assert_close(found.probs[0], torch.tensor([0.7, 1.0, 0.2]) / 1.9)
    torch.testing.assert_close(found.aleatoric, 0.4 * entropy(found.probs))
    torch.testing.assert_close(found.epistemic[0], 0.6 * entropy(found.probs)[0])


def test_of_a_draw_that_the_prior_excludes_the_prior_is_left() -> None:
    draws = torch.tensor([[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]])
    given_ = Prediction(draws.mean(0), draws.clamp_min(1e-12).log().mean(0), entropy(draws).mean(0), draws)
    prior = torch.tensor([0.0, 0.2, 0.8], dtype=torch.float64)
    found = given_.under(prior * 3, prior)
    torch.testing.assert_close(found.draws, torch.tensor([[[0.0, 0.2, 0.8]], [[0.0, 1.0, 0.0]]]))
    torch.testing.assert_close(found.probs, torch.tensor([[0.0, 0.6, 0.4]]))
    assert found.prior is prior
    assert found.logits.isfinite().all()
    torch.testing.assert_close(given_.under(prior).draws, found.draws)


def test_a_network_that_has_diverged_is_not_taken_for_the_prior() -> None:
    given_ = Prediction.of(torch.full((2, 3), torch.nan), torch.zeros(2))
    assert given_.under(torch.tensor([1.0, 2.0, 3.0])).probs.isnan().all()


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [1.0, -1.0, 1.0], [1.0, math.nan, 1.0], [1.0, math.inf, 1.0]])
def test_what_is_no_ratio_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="a ratio of priors is finite"):
        Prediction.of(torch.eye(3), torch.zeros(3)).under(torch.tensor(values))
