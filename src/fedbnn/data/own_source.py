"""Data sets from a function of the user's own: `data.source = "package.module:load"`.

It takes no argument and returns a `fedbnn.Dataset`, arrays (x, y), of which a fixed share of every class is for
testing, or (x_train, y_train, x_test, y_test). Arrays are as those of an .npz file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.imports import imported
from fedbnn.data.csv_source import tested
from fedbnn.data.dataset import Dataset
from fedbnn.data.stored import Array, Half, Stored, dataset_of
from fedbnn.models.regression import Scale


def load_own(reference: str, test_fraction: float, scale: Callable[[], Scale] | None = None) -> Dataset:
    """What the function returns. In regression `scale` gives the target's, which a Dataset knows by itself."""
    origin = f"data.source = {reference!r}"
    load = imported(reference, origin)
    if not callable(load):
        raise UserError(f"{origin} is no function, but {type(load).__name__}")
    try:
        found = load()
    except UserError:
        raise
    except Exception as error:  # the user's own code may fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{origin} failed: {type(error).__name__}: {reason}") from error
    if isinstance(found, Dataset):
        if (found.scale is None) != (scale is None):
            kinds = ("classification", "regression")
            said, is_ = kinds[scale is not None], kinds[found.scale is not None]
            raise UserError(f"data.task = '{said}', but {origin} returned a data set for {is_}")
        return found
    if not isinstance(found, tuple) or len(found) not in (2, 4):
        raise UserError(
            f"{origin} returned {type(found).__name__}; a fedbnn.Dataset, (x, y) or (x_train, y_train, x_test, y_test) "
            "is needed"
        )
    stored = _Arrays(origin, found, test_fraction, classes=scale is None)
    return dataset_of(stored, reference.rpartition(":")[2], scale=None if scale is None else scale())


class _Arrays(Stored):
    """What a function returned."""

    def __init__(self, origin: str, found: tuple[Any, ...], test_fraction: float, classes: bool) -> None:
        self.origin, self.path, self.halves = origin, Path(), ("train", "test")
        arrays: list[Array] = [np.asarray(one) for one in found]
        for array in arrays:
            if array.ndim == 0 or (len(arrays) == 2 and len(array) != len(arrays[0])):
                raise UserError(f"{origin} returned arrays of shapes {[one.shape for one in arrays]}; records go first")
        if len(arrays) == 2:
            x, y = arrays
            labels = np.zeros(len(y), dtype=np.int64)
            if classes:
                labels = np.unique(y.reshape(len(y), -1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
            train, test = tested(labels, None, test_fraction, origin, "y")
            arrays = [x[train], y[train], x[test], y[test]]
        self._found: dict[Half, tuple[Array, Array]] = {
            "train": (arrays[0], arrays[1]),
            "test": (arrays[2], arrays[3]),
        }

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        return {half: self._found[half] for half in halves}
