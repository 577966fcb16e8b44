import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from fedbnn.federation.metrics.confusion import MOST_CLASSES, Confusion, confusion


@given(st.integers(0, 99), st.integers(1, 60), st.integers(2, 6))
def test_counts_and_scores_are_those_of_another_library(seed, n, classes):
    rng = np.random.default_rng(seed)
    p, y = rng.dirichlet(np.ones(classes), n), rng.integers(0, classes, n)
    found = confusion(p, y)
    assert np.array_equal(found.counts, confusion_matrix(y, p.argmax(1), labels=range(classes)))
    precision, recall, f1, _ = precision_recall_fscore_support(
        y, p.argmax(1), labels=range(classes), zero_division=np.nan
    )
    assert np.allclose(found.recall, recall, equal_nan=True)
    assert np.allclose(found.precision, precision, equal_nan=True)
    assert np.allclose(np.nan_to_num(found.f1), np.nan_to_num(f1))
    again = Confusion.from_list(found.to_list()) + found
    assert np.array_equal(again.counts, 2 * found.counts)


def test_many_classes_have_no_matrix():
    p = np.full((2, MOST_CLASSES + 1), 1 / (MOST_CLASSES + 1))
    assert confusion(p, [0, 1]) is None
    assert confusion(p[:, :-1], [0, 1]) is not None


@pytest.mark.parametrize(
    "rows", [None, [], [[1]], [[1, 2]], [[1, 2], [3]], [[1, 2], [3, -1]], [[1, 2], [3, 0.5]], [[1, 2], [3, True]],
             [[0, 2**41], [0, 0]], [[0] * 51] * 51, "ab"]
)  # fmt: skip
def test_anything_else_is_no_matrix(rows):
    with pytest.raises(ValueError, match="confusion matrix"):
        Confusion.from_list(rows)


def test_matrices_of_other_classes_are_not_added():
    with pytest.raises(ValueError, match="different classes"):
        _ = Confusion(np.zeros((2, 2), int)) + Confusion(np.zeros((3, 3), int))
