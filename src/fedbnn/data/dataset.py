"""A data set: four arrays, the names of the classes or the scale of the target, and natural clients, if any."""

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.arguments import check_kind
from fedbnn.base.errors import UserError
from fedbnn.models.regression import Scale

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Targets = NDArray[Any]
"""Labels, int64, or in regression real numbers, float32."""
Names = NDArray[np.str_]


def fingerprint_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over the names, shapes, dtypes and bytes of some arrays."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def check_finite(what: str, x: Floats) -> None:
    bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
    if bad.size:
        raise UserError(f"{what} holds NaN or infinity in {bad.size} record(s), the first at index {bad[0]}")


def check_records(origin: str, split: str, x: Floats, y: Targets, classes: int) -> None:
    """Refuse records that cannot be learned from or scored; `origin` names the data set they are a part of.

    Without classes, targets are real numbers.
    """

    def error(text: str) -> UserError:
        return UserError(f"{origin}: {text}")

    if x.dtype != np.float32 or x.ndim not in (2, 3, 4):
        raise error(f"x_{split} is {x.dtype} of shape {x.shape}; float32 N x C x H x W, N x T x F or N x F is needed")
    kind = np.dtype(np.int64 if classes else np.float32)
    if y.dtype != kind or y.ndim != 1:
        raise error(f"y_{split} is {y.dtype} of shape {y.shape}; {kind} of one dimension is needed")
    if len(x) != len(y):
        raise error(f"x_{split} has {len(x)} records but y_{split} has {len(y)} labels")
    if len(x) == 0:
        raise error(f"x_{split} has no records")
    if x[0].size == 0:
        raise error(f"a record of x_{split} has shape {x.shape[1:]}: it holds no value")
    check_finite(f"{origin}: x_{split}", x)
    if not classes:
        check_finite(f"{origin}: y_{split}", y)
        return
    outside = np.flatnonzero((y < 0) | (y >= classes))
    if outside.size:
        raise error(
            f"y_{split} holds {outside.size} label(s) outside 0 .. {classes - 1}, "
            f"the first is {y[outside[0]]} at index {outside[0]}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Records with labels, checked once at construction so that nothing after it has to.

    Attributes:
        name: what reports and manifests call it.
        x_train: float32, images N x C x H x W, sequences N x T x F (T steps of F values) or a table N x F. Clients,
            the alignment set and the validation records are all drawn from it.
        y_train: int64 labels in 0 .. classes - 1, or in regression float32 numbers in their own unit.
        x_test: records that no client trains on, of the same shape.
        y_test: their labels.
        class_names: one name a class, in the order of the labels; in regression none.
        group_train: the natural client of each training record (a hospital, a writer), or None.
        group_test: the same for the test records.
        scale: in regression the public scale of the target.

    """

    name: str
    x_train: Floats
    y_train: Targets
    x_test: Floats
    y_test: Targets
    class_names: tuple[str, ...]
    group_train: Names | None = None
    group_test: Names | None = None
    scale: Scale | None = None

    def __post_init__(self) -> None:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            check_kind(name, getattr(self, name), np.ndarray, "a NumPy array")
        if self.scale is not None and self.class_names:
            raise UserError(f"data set {self.name!r} has class names and the scale of a real target: give one of them")
        if self.scale is None and self.classes < 2:
            raise UserError(f"data set {self.name!r} has {self.classes} class(es); at least 2 are needed")
        origin = f"data set {self.name!r}"
        for split in ("train", "test"):
            x, y, group = (getattr(self, f"{what}_{split}") for what in ("x", "y", "group"))
            check_records(origin, split, x, y, self.classes)
            if group is not None and (group.dtype.kind != "U" or group.shape != y.shape):
                raise UserError(
                    f"{origin}: group_{split} is {group.dtype} of shape {group.shape}; {len(y)} strings are needed"
                )
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise UserError(
                f"{origin}: a record of x_train has shape {self.input_shape}, one of x_test {self.x_test.shape[1:]}"
            )
        if (self.group_train is None) != (self.group_test is None):
            raise UserError(f"{origin}: group_train and group_test go together: give both or neither")

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record: (C, H, W), (T, F) or (F,)."""
        return tuple(self.x_train.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the shapes, dtypes and bytes of all arrays: the same records in the same order."""
        names = ("x_train", "y_train", "x_test", "y_test", "group_train", "group_test")
        arrays: dict[str, NDArray[Any] | None] = {name: getattr(self, name) for name in names}
        return fingerprint_of({name: array for name, array in arrays.items() if array is not None})
