import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedbnn.federation.metrics import UncertaintyHistogram, auroc, uncertainty_histogram

scores = st.lists(st.integers(0, 6).map(lambda i: i / 6), min_size=1, max_size=30)


@given(scores, scores)
def test_auroc_agrees_with_sklearn(negative: list[float], positive: list[float]) -> None:
    truth = [0] * len(negative) + [1] * len(positive)
    assert auroc(negative, positive) == pytest.approx(roc_auc_score(truth, negative + positive), abs=1e-12)


def test_auroc_limits() -> None:
    assert auroc([0, 1], [2, 3]) == 1.0
    assert auroc([2, 3], [0, 1]) == 0.0
    assert auroc([1, 1], [1]) == 0.5


def test_histogram_by_hand() -> None:
    full = np.log(4)
    values = [-1e-9, 0.0, 0.5 * full, full, 1.1 * full]
    histogram = uncertainty_histogram(values, [True, True, False, True, False], classes=4)
    assert histogram.edges.tolist() == np.linspace(0, 1, 21).tolist()
    assert (histogram.right[0], histogram.wrong[10], histogram.right[19], histogram.wrong[19]) == (2, 1, 1, 1)
    assert histogram.right.sum() + histogram.wrong.sum() == 5


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=50))
def test_histogram_counts_everything_and_ranks_as_binned_values(rows: list[tuple[float, bool]]) -> None:
    values = np.array([v for v, _ in rows])
    right = np.array([r for _, r in rows])
    histogram = uncertainty_histogram(values, right, classes=10)
    assert histogram.right.sum() == right.sum()
    assert histogram.wrong.sum() == (~right).sum()
    if right.all() or not right.any():
        assert np.isnan(histogram.auroc)
    else:
        centres = np.arange(20)
        expected = auroc(np.repeat(centres, histogram.right), np.repeat(centres, histogram.wrong))
        assert histogram.auroc == pytest.approx(expected)


def test_pooling_and_json() -> None:
    rng = np.random.default_rng(0)
    values, right = rng.uniform(0, 1, 100), rng.random(100) < 0.7
    whole = uncertainty_histogram(values, right, 3)
    pooled = uncertainty_histogram(values[:40], right[:40], 3) + uncertainty_histogram(values[40:], right[40:], 3)
    assert pooled.to_dict() == whole.to_dict()
    assert UncertaintyHistogram.from_dict(json.loads(json.dumps(whole.to_dict()))).to_dict() == whole.to_dict()


def test_bad_histograms_are_named() -> None:
    whole = uncertainty_histogram([0.1], [True], 2)
    with pytest.raises(ValueError, match="wrong"):
        UncertaintyHistogram.from_dict({"edges": [0, 1], "right": [1]})
    with pytest.raises(ValueError, match="each pair of edges"):
        UncertaintyHistogram.from_dict({"edges": [0, 1], "right": [1], "wrong": [1, 2]})
    with pytest.raises(ValueError, match="different edges"):
        whole + UncertaintyHistogram(np.array([0.0, 1.0]), np.array([1]), np.array([1]))
    with pytest.raises(ValueError, match="at least 2 classes"):
        uncertainty_histogram([0.1], [True], 1)
    with pytest.raises(ValueError, match=r"both be \(n,\)"):
        uncertainty_histogram([0.1, 0.2], [True], 2)
    with pytest.raises(ValueError, match="not numbers"):
        uncertainty_histogram([float("nan")], [True], 2)
