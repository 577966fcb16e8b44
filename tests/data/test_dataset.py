import dataclasses

import numpy as np
import pytest

from fedbnn.base.errors import UserError
from fedbnn.data import Dataset


def images(**changes):
    fields = {
        "name": "toy",
        "x_train": np.zeros((6, 3, 4, 5), dtype=np.float32),
        "y_train": np.array([0, 1, 0, 1, 0, 1]),
        "x_test": np.zeros((2, 3, 4, 5), dtype=np.float32),
        "y_test": np.array([0, 1]),
        "class_names": ("cat", "dog"),
    }
    return Dataset(**(fields | changes))


def test_shape_and_classes():
    data = images()
    assert data.classes == 2
    assert data.input_shape == (3, 4, 5)


def test_fingerprint_is_that_of_the_content():
    assert images().fingerprint == images().fingerprint
    assert len(images().fingerprint) == 64
    transposed = np.zeros((6, 5, 4, 3), dtype=np.float32).transpose(0, 3, 2, 1)
    assert images(x_train=transposed).fingerprint == images().fingerprint


@pytest.mark.parametrize("field", ["x_train", "x_test", "y_train", "y_test", "group_train", "group_test"])
def test_fingerprint_changes_with_one_byte_of_any_array(field):
    data = images(group_train=np.array(list("aabbcc")), group_test=np.array(["a", "b"]))
    changed = getattr(data, field).copy()
    changed.view(np.uint8).reshape(-1)[0] ^= 1
    assert dataclasses.replace(data, **{field: changed}).fingerprint != data.fingerprint


def test_fingerprint_changes_with_the_shape_alone():
    a = images(x_train=np.zeros((6, 3, 4, 5), dtype=np.float32))
    b = images(x_train=np.zeros((6, 3, 5, 4), dtype=np.float32), x_test=np.zeros((2, 3, 5, 4), dtype=np.float32))
    assert a.fingerprint != b.fingerprint


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["x_train", "x_test"])
def test_not_finite(field, value):
    x = getattr(images(), field).copy()
    x[1, 2, 3, 4] = x[1, 0, 0, 0] = value
    with pytest.raises(UserError, match=rf"{field} holds NaN or infinity in 1 record\(s\), the first at index 1"):
        images(**{field: x})


def test_not_finite_counts_records():
    x = np.zeros((6, 3, 4, 5), dtype=np.float32)
    x[[2, 5]] = np.nan
    with pytest.raises(UserError, match=r"in 2 record\(s\), the first at index 2"):
        images(x_train=x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.array([0, 1])}, "x_train has 6 records but y_train has 2 labels"),
        ({"y_test": np.array([0, 2])}, r"y_test holds 1 label\(s\) outside 0 .. 1, the first is 2 at index 1"),
        ({"y_test": np.array([-1, 1])}, "the first is -1 at index 0"),
        ({"class_names": ("only",)}, r"1 class\(es\); at least 2"),
        (
            {"x_test": np.zeros((0, 3, 4, 5), dtype=np.float32), "y_test": np.zeros(0, dtype=np.int64)},
            "x_test has no records",
        ),
        ({"x_test": np.zeros((2, 3, 4, 4), dtype=np.float32)}, r"\(3, 4, 5\), one of x_test \(3, 4, 4\)"),
        ({"x_train": np.zeros((6, 3, 4, 5))}, "x_train is float64"),
        ({"x_train": np.zeros((6, 3, 4, 5, 1), dtype=np.float32)}, r"shape \(6, 3, 4, 5, 1\)"),
        ({"x_train": np.zeros((6, 0), dtype=np.float32)}, "holds no value"),
        ({"y_train": np.zeros(6)}, "y_train is float64"),
        ({"group_train": np.array(list("abcdef"))}, "give both or neither"),
        ({"group_train": np.array(list("abc"))}, "6 strings are needed"),
        ({"group_train": np.arange(6)}, "6 strings are needed"),
    ],
)
def test_mistakes_are_named_in_one_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        images(**changes)
    assert "\n" not in str(caught.value)
    assert "toy" in str(caught.value)
