"""Which records these are: what has a part in it, and what has none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.data.identity import contents, fingerprint_of_set, identify, overlap

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 5)).astype(np.float32)
LABELS = [f"class {i % 3}" for i in range(12)]


def fingerprint(x, labels):
    return fingerprint_of_set(identify(x, labels))


KNOWN = fingerprint(X, LABELS)


@given(st.permutations(range(12)), st.permutations(range(5)))
def test_the_order_of_records_and_columns_is_nothing(rows, columns):
    changed = X[np.ix_(rows, columns)]
    assert fingerprint(changed, [LABELS[row] for row in rows]) == KNOWN


def test_layout_and_shape_are_nothing():
    images = RNG.normal(size=(4, 3, 2, 2)).astype(np.float32)
    labels = ["a"] * 4
    assert fingerprint(np.asfortranarray(images), labels) == fingerprint(images, labels)
    assert fingerprint(images.reshape(4, 12), labels) == fingerprint(images, labels)


def test_zeros_and_nans_have_one_form():
    odd = np.array([[0.0, -0.0, np.nan]], np.float32)
    other = odd.copy()
    other.view(np.uint32)[0, 2] ^= 1  # another NaN
    assert fingerprint(odd, ["a"]) == fingerprint(np.abs(other), ["a"])


@pytest.mark.parametrize("change", ["value", "label", "fewer", "twice"])
def test_content_is_everything(change):
    x, labels = X.copy(), list(LABELS)
    if change == "value":
        x[3, 1] = np.nextafter(x[3, 1], np.float32(np.inf))
    elif change == "label":
        labels[3] = "class 9"
    elif change == "fewer":
        x, labels = x[1:], labels[1:]
    else:
        x, labels = np.concatenate([x, x[:1]]), [*labels, labels[0]]
    assert fingerprint(x, labels) != KNOWN


def test_overlaps_are_seen_whatever_the_labels_say():
    whole = contents(identify(X, LABELS))
    assert overlap(contents(identify(X[:1, ::-1], ["another"])), whole)
    assert not overlap(contents(identify(X + 1, LABELS)), whole)
    assert not overlap(b"", whole)
