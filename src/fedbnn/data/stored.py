"""A data set as files hold it, and how what they hold becomes a Dataset."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Dataset, Floats, Labels, Names, Targets
from fedbnn.data.targets import measured
from fedbnn.models.regression import Scale

Array = NDArray[Any]
Half = Literal["train", "test"]

CHANNELS = (1, 3, 4)


class Stored(ABC):
    """Up to two halves, train and test, whose records are read only when they are asked for.

    Attributes:
        origin: how error messages name it, such as "data.path = 'mine.npz'".
        path: the file or folder it is in.
        halves: those that are there, which is known without reading records.

    """

    origin: str
    path: Path
    halves: tuple[Half, ...]

    @property
    def complete(self) -> bool:
        """Whether it can be trained on and scored."""
        return "train" in self.halves and "test" in self.halves

    @abstractmethod
    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        """Inputs and labels of these halves, as they are stored."""

    def names(self) -> tuple[str, ...]:
        """The names of the labels 0, 1, ..., where the files give any."""
        return ()

    def group(self, half: Half) -> Names | None:
        """The natural client of each record, where the data has any."""
        return None


def best(candidates: Iterable[Stored]) -> Stored | None:
    """The first that is complete, or else the first with a test half."""
    usable = [one for one in candidates if "test" in one.halves]
    return next((one for one in usable if one.complete), next(iter(usable), None))


def dataset_of(
    stored: Stored, name: str, names: tuple[str, ...] = (), tests: int = 0, scale: Scale | None = None
) -> Dataset:
    """Both halves as a checked data set with the first `tests` test records (0: all).

    Labels become 0 .. C - 1 in sorted order over train and test. They are named by the files, else by `names`,
    else by themselves. With a scale they are real numbers.
    """
    both = stored.read("train", "test")
    (x_train, y_train), (x_test, y_test) = both["train"], both["test"]
    for key, array in (("x_train", x_train), ("x_test", x_test)):
        if array.ndim == 0:
            raise UserError(f"{stored.origin}: {key} is a single number, not an array of records")
    if (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise UserError(
            f"{stored.origin}: x_train is {x_train.dtype} and x_test {x_test.dtype}: "
            "uint8 images are divided by 255, others are not, so both must be the same"
        )
    labels_train: Targets
    labels_test: Targets
    if scale is None:
        labels_train, labels_test, class_names = _labels(stored.origin, y_train, y_test, stored.names() or names)
    else:
        class_names = ()
        labels_train, labels_test = (
            measured(stored.origin, "y_train", y_train),
            measured(stored.origin, "y_test", y_test),
        )
    # Wrong lengths are for the Dataset to find: they must not be cut to fit.
    kept = slice(tests if 0 < tests < min(len(x_test), len(labels_test)) else None)
    group_test = stored.group("test")
    inputs_test = inputs_of(stored.origin, "x_test", x_test[kept])

    return Dataset(
        name=name,
        x_train=inputs_of(stored.origin, "x_train", x_train),
        y_train=labels_train,
        x_test=inputs_test,
        y_test=labels_test[kept],
        class_names=class_names,
        group_train=stored.group("train"),
        group_test=None if group_test is None else group_test[kept],
        scale=scale,
    )


def inputs_of(origin: str, key: str, x: Array) -> Floats:
    """A table as float32, or images as float32 N x C x H x W; uint8 images are divided by 255."""
    if x.dtype.kind not in "biuf":
        raise UserError(f"{origin}: {key} is {x.dtype}; numbers are needed")
    with np.errstate(over="ignore"):
        values = _arranged(origin, key, x).astype(np.float32, order="C")
    if x.ndim > 2 and x.dtype == np.uint8:
        values /= np.float32(255)
    return values


def _arranged(origin: str, key: str, x: Array) -> Array:
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in CHANNELS:
        return x.transpose(0, 3, 1, 2)
    if x.ndim == 4 and x.shape[1] in CHANNELS:
        return x
    raise UserError(
        f"{origin}: {key} has shape {x.shape}; a table N x F or images N x H x W, N x H x W x C "
        "or N x C x H x W with C = 1, 3 or 4 are needed"
    )


def _labels(origin: str, train: Array, test: Array, names: tuple[str, ...]) -> tuple[Labels, Labels, tuple[str, ...]]:
    flat: list[Array] = []
    for key, y in (("y_train", train), ("y_test", test)):
        column = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if column.dtype.kind not in "biuU" or column.ndim != 1:
            raise UserError(
                f"{origin}: {key} is {y.dtype} of shape {y.shape}; one integer or string a record is needed"
            )
        flat.append(column)
    if (flat[0].dtype.kind == "U") != (flat[1].dtype.kind == "U"):
        raise UserError(
            f"{origin}: y_train is {train.dtype} and y_test {test.dtype}: both must be integers or both strings"
        )
    values = sorted(set(flat[0].tolist()) | set(flat[1].tolist()))
    position = {value: index for index, value in enumerate(values)}
    y_train, y_test = (np.array([position[value] for value in column.tolist()], dtype=np.int64) for column in flat)
    if not names or flat[0].dtype.kind == "U":
        return y_train, y_test, tuple(str(value) for value in values)
    if outside := [value for value in values if not 0 <= value < len(names)]:
        raise UserError(f"{origin}: label {outside[0]} has no name; there are {len(names)} names")
    return y_train, y_test, tuple(names[value] for value in values)
