import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.federation.metrics import ReliabilityBins, accuracy, reliability

BINS = 15
EDGES = np.linspace(0, 1, BINS + 1)


def predictions(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.4), size=n)
    labels = np.array([rng.choice(classes, p=0.7 * p + 0.3 / classes) for p in probs])
    return probs, labels


def two_class(confidence: float, right: bool) -> tuple[list[float], int]:
    return [confidence, 1.0 - confidence], int(not right)


@pytest.mark.parametrize(("classes", "seed"), [(3, 0), (10, 1), (10, 2)])
def test_ece_and_mce_agree_with_netcal(classes: int, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics = pytest.importorskip("netcal.metrics")
    probs, labels = predictions(3000, classes, seed)
    ours = reliability(probs, labels, BINS)
    assert ours.ece == pytest.approx(metrics.ECE(BINS).measure(probs, labels), abs=1e-12)
    assert ours.mce == pytest.approx(metrics.MCE(BINS).measure(probs, labels), abs=1e-12)


def brute_force(probs: np.ndarray, labels: np.ndarray, bins: int) -> tuple[float, float]:
    """The definition, one bin and one prediction at a time."""
    edges = np.linspace(0, 1, bins + 1)
    ece, mce = 0.0, 0.0
    for b in range(bins):
        hits, confidences = [], []
        for p, y in zip(probs, labels, strict=True):
            top = max(range(len(p)), key=lambda c: p[c])
            if edges[b] < p[top] <= edges[b + 1] or (b == 0 and p[top] == 0):
                hits.append(top == y)
                confidences.append(p[top])
        if hits:
            gap = abs(sum(hits) / len(hits) - sum(confidences) / len(confidences))
            ece += len(hits) / len(labels) * gap
            mce = max(mce, gap)
    return ece, mce


@given(st.data())
def test_matches_the_definition(data: st.DataObject) -> None:
    bins = data.draw(st.integers(1, 20))
    on_edge = st.sampled_from([float(edge) for edge in np.linspace(0, 1, bins + 1)])
    confidence = st.one_of(st.floats(0, 1), on_edge)
    rows = data.draw(st.lists(st.tuples(confidence, st.booleans()), min_size=1, max_size=40))
    probs = np.array([[c, 0.0] for c, _ in rows])
    labels = np.array([int(not right) for _, right in rows])
    ours = reliability(probs, labels, bins)
    ece, mce = brute_force(probs, labels, bins)
    assert ours.ece == pytest.approx(ece, abs=1e-12)
    assert ours.mce == pytest.approx(mce, abs=1e-12)
    assert ours.count.sum() == len(rows)
    assert 0 <= ours.ece <= ours.mce + 1e-12 <= 1 + 2e-12


@pytest.mark.parametrize("k", range(1, BINS + 1))
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(k: int) -> None:
    edge = float(EDGES[k])
    assert reliability([[edge, 0.0]], [0], BINS).count[k - 1] == 1
    if k < BINS:
        assert reliability([[np.nextafter(edge, 1), 0.0]], [0], BINS).count[k] == 1


def test_certain_predictions_count_in_the_last_bin() -> None:
    """Ten certain predictions, eight of them right: the gap is 0.2, as ECE and as MCE."""
    rows = [two_class(1.0, i < 8) for i in range(10)]
    bins = reliability([p for p, _ in rows], [y for _, y in rows], BINS)
    assert bins.count[-1] == 10
    assert bins.ece == pytest.approx(0.2)
    assert bins.mce == pytest.approx(0.2)


def test_rounding_above_one_and_below_zero_stays_in_the_end_bins() -> None:
    assert reliability(np.array([[1.0000001, 0.0]], dtype=np.float32), [0]).count[-1] == 1
    assert reliability([[0.0, 0.0]], [0]).count[0] == 1


def test_empty_bins_are_nan_and_do_not_count() -> None:
    bins = reliability([[0.9, 0.1], [0.9, 0.1]], [0, 1], BINS)
    filled = bins.count > 0
    assert filled.sum() == 1
    assert np.isnan(bins.accuracy[~filled]).all()
    assert np.isnan(bins.confidence[~filled]).all()
    assert bins.accuracy[filled] == pytest.approx(0.5)
    assert bins.mce == pytest.approx(0.4)


def test_pooling_equals_one_go() -> None:
    probs, labels = predictions(500, 5, 3)
    whole = reliability(probs, labels)
    pooled = reliability(probs[:123], labels[:123]) + reliability(probs[123:], labels[123:])
    assert pooled.count.tolist() == whole.count.tolist()
    assert pooled.ece == pytest.approx(whole.ece)
    assert whole.correct_sum.sum() / whole.count.sum() == pytest.approx(accuracy(probs, labels))
    with pytest.raises(ValueError, match="different edges"):
        whole + reliability(probs, labels, bins=10)


def test_through_json_and_back() -> None:
    bins = reliability(*predictions(50, 4, 4))
    again = ReliabilityBins.from_dict(json.loads(json.dumps(bins.to_dict())))
    assert again.to_dict() == bins.to_dict()
    assert again.ece == bins.ece


def test_broken_dictionaries_are_named() -> None:
    values = reliability(*predictions(50, 4, 4)).to_dict()
    with pytest.raises(ValueError, match="count"):
        ReliabilityBins.from_dict({k: v for k, v in values.items() if k != "count"})
    with pytest.raises(ValueError, match="each pair of edges"):
        ReliabilityBins.from_dict({**values, "count": [1, 2]})


def test_no_predictions_at_all_have_no_error() -> None:
    zero = np.zeros(3, dtype=np.int64)
    bins = ReliabilityBins(np.linspace(0, 1, 4), zero, np.zeros(3), zero)
    assert np.isnan(bins.ece)
    assert np.isnan(bins.mce)
