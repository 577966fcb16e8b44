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
def test_histogram_counts_everything_and_ranks_by_exact_values(rows: list[tuple[float, bool]]) -> None:
    values = np.array([v for v, _ in rows])
    right = np.array([r for _, r in rows])
    histogram = uncertainty_histogram(values, right, classes=10)
    assert histogram.right.sum() == right.sum()
    assert histogram.wrong.sum() == (~right).sum()
    if right.all() or not right.any():
        assert np.isnan(histogram.auroc)
    else:
        assert histogram.auroc == pytest.approx(roc_auc_score(~right, values))


def test_values_that_share_a_bin_are_still_told_apart() -> None:
    """All in the lowest bin, as a posterior that hardly widens has them."""
    histogram = uncertainty_histogram([1e-4, 2e-4, 3e-4, 4e-4], [True, True, False, True], classes=10)
    assert histogram.right[0] + histogram.wrong[0] == 4
    assert histogram.auroc == pytest.approx(2 / 3)


def test_pooling_and_json() -> None:
    """Counts are those of all predictions together, and pairs are those within a client."""
    rng = np.random.default_rng(0)
    values, right = rng.uniform(0, 1, 100), rng.random(100) < 0.7
    whole = uncertainty_histogram(values, right, 3)
    parts = [(values[:40], right[:40]), (values[40:], right[40:])]
    one, other = (uncertainty_histogram(*part, 3) for part in parts)
    pooled = one + other
    assert (pooled.right.tolist(), pooled.wrong.tolist()) == (whole.right.tolist(), whole.wrong.tolist())
    sizes = [float(hit.sum() * (~hit).sum()) for _, hit in parts]
    each = [roc_auc_score(~hit, value) for value, hit in parts]
    assert pooled.auroc == pytest.approx(np.average(each, weights=sizes))
    assert UncertaintyHistogram.from_dict(json.loads(json.dumps(whole.to_dict()))).to_dict() == whole.to_dict()


def test_bad_histograms_are_named() -> None:
    whole = uncertainty_histogram([0.1], [True], 2)
    with pytest.raises(ValueError, match="wrong"):
        UncertaintyHistogram.from_dict({"edges": [0, 1], "right": [1]})
    with pytest.raises(ValueError, match="each pair of edges"):
        UncertaintyHistogram.from_dict({"edges": [0, 1], "right": [1], "wrong": [1, 2], "pairs": [1.0], "won": [1.0]})
    with pytest.raises(ValueError, match="different edges"):
        whole + UncertaintyHistogram(np.array([0.0, 1.0]), *(np.array([1]) for _ in range(4)))
    with pytest.raises(ValueError, match="at least 2 classes"):
        uncertainty_histogram([0.1], [True], 1)
    with pytest.raises(ValueError, match=r"both be \(n,\)"):
        uncertainty_histogram([0.1, 0.2], [True], 2)
    with pytest.raises(ValueError, match="not numbers"):
        uncertainty_histogram([float("nan")], [True], 2)
