import numpy as np
import pytest

from fedbnn.federation.metrics import accuracy, auroc, brier, nll, reliability, uncertainty_histogram

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.25, 0.25]])
LABELS = np.array([0, 1, 2])


def test_scores_by_hand() -> None:
    assert accuracy(PROBS, LABELS) == pytest.approx(1 / 3)
    assert nll(PROBS, LABELS) == pytest.approx(-(np.log(0.7) + np.log(0.3) + np.log(0.25)) / 3)
    first, second, third = 0.09 + 0.04 + 0.01, 0.01 + 0.49 + 0.36, 0.25 + 0.0625 + 0.5625
    assert brier(PROBS, LABELS) == pytest.approx((first + second + third) / 3)


def test_limits() -> None:
    certain = np.eye(3)
    assert (accuracy(certain, LABELS), nll(certain, LABELS), brier(certain, LABELS)) == (1.0, 0.0, 0.0)
    wrong = np.roll(LABELS, 1)
    assert nll(certain, wrong) == pytest.approx(-np.log(1e-12))
    assert brier(certain, wrong) == 2.0


def test_the_true_probabilities_score_best() -> None:
    """NLL and Brier are proper: in expectation no other forecast beats the distribution of the labels."""
    truth = np.array([0.6, 0.3, 0.1])
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    rng = np.random.default_rng(0)
    for score in (nll, brier):
        best = score(np.tile(truth, (100, 1)), labels)
        others = rng.dirichlet(np.ones(3), size=50)
        assert all(score(np.tile(other, (100, 1)), labels) > best for other in others)


def test_float32_and_input_is_left_alone() -> None:
    probs = PROBS.astype(np.float32)
    before = probs.copy()
    assert brier(probs, LABELS) == pytest.approx(brier(PROBS, LABELS), abs=1e-6)
    np.testing.assert_array_equal(probs, before)


@pytest.mark.parametrize("metric", [accuracy, nll, brier, reliability])
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (np.zeros((0, 3)), np.zeros(0, dtype=int), "no predictions"),
        (PROBS, LABELS[:2], r"\(n, classes\)"),
        (PROBS, LABELS.astype(float), "integers"),
        (PROBS, LABELS + 1, "in 0..2, got 1..3"),
        (PROBS, LABELS - 1, "in 0..2, got -1..1"),
        (np.full((3, 3), np.nan), LABELS, "not finite"),
    ],
)
def test_bad_input_is_named(metric, probs, labels, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        metric(probs, labels)


def test_other_empty_input_is_named() -> None:
    with pytest.raises(ValueError, match="0 negative and 1 positive"):
        auroc([], [1.0])
    with pytest.raises(ValueError, match="not numbers"):
        auroc([float("nan")], [1.0])
    with pytest.raises(ValueError, match="empty"):
        uncertainty_histogram([], [], classes=3)
    with pytest.raises(ValueError, match="at least 1"):
        reliability(PROBS, LABELS, bins=0)
