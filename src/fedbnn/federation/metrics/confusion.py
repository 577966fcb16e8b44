"""Which class was taken for which: counts that can be added, and what they say of each class."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.predictions import Floats, Ints, checked

MOST_CLASSES = 50
"""Of more, nobody could read the matrix, and its square would outweigh all other scores."""


@dataclass(frozen=True, eq=False)
class Confusion:
    """Predictions counted by class: true ones in rows, predicted ones in columns."""

    counts: Ints

    def __add__(self, other: "Confusion") -> "Confusion":
        """Both sets of predictions pooled. The classes must be the same."""
        if self.counts.shape != other.counts.shape:
            raise ValueError("confusion matrices of different classes cannot be added")
        return Confusion(self.counts + other.counts)

    @property
    def recall(self) -> Floats:
        """Of each class's records, the share that is found; nan where there are none."""
        return _shares(np.diag(self.counts), self.counts.sum(1))

    @property
    def precision(self) -> Floats:
        """Of the records that are taken for a class, the share that is of it; nan where there are none."""
        return _shares(np.diag(self.counts), self.counts.sum(0))

    @property
    def f1(self) -> Floats:
        """2 hits / (records + predictions) of each class: the harmonic mean of both (van Rijsbergen 1979)."""
        return _shares(2 * np.diag(self.counts), self.counts.sum(0) + self.counts.sum(1))

    def to_list(self) -> list[list[int]]:
        rows: list[list[int]] = self.counts.tolist()
        return rows

    @classmethod
    def from_list(cls, rows: Any) -> "Confusion":
        """What `to_list` gave; ValueError for anything else."""
        if not isinstance(rows, list) or not 2 <= len(rows) <= MOST_CLASSES:
            raise ValueError(f"a confusion matrix has 2 to {MOST_CLASSES} rows")
        for row in rows:
            if not isinstance(row, list) or len(row) != len(rows) or any(type(one) is not int for one in row):
                raise ValueError("a confusion matrix is square, of whole numbers")
            if any(not 0 <= one <= 2**40 for one in row):
                raise ValueError("a count of a confusion matrix is not between 0 and 2^40")
        return cls(np.array(rows, dtype=np.int64))


def confusion(probs: ArrayLike, labels: ArrayLike) -> Confusion | None:
    """Counts of the most probable classes; None where there are too many classes."""
    p, y = checked(probs, labels)
    classes = p.shape[1]
    if classes > MOST_CLASSES:
        return None
    cells = np.bincount(y * classes + p.argmax(axis=1), minlength=classes * classes)
    return Confusion(cells.reshape(classes, classes).astype(np.int64))


def _shares(part: Ints, whole: Ints) -> Floats:
    shares = np.full(len(whole), np.nan)
    np.divide(part, whole, out=shares, where=whole > 0)
    return shares
