"""Synthetic data sets whose records are their own row numbers, so that a test can tell who got which."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from fedbnn.data import Dataset
from fedbnn.data.download import REMOTES


@pytest.fixture(autouse=True)
def no_web(monkeypatch):
    """No test fetches anything from elsewhere: nobody answers at the addresses it finds."""
    for name, remotes in REMOTES.items():
        nowhere = [dataclasses.replace(one, url=f"http://127.0.0.1:1/{one.name}") for one in remotes]
        monkeypatch.setitem(REMOTES, name, tuple(nowhere))


def build(per_class: list[int], groups: int = 0, tests_per_class: int = 3) -> Dataset:
    """A table with features (row, row squared); class c has per_class[c] training records, shuffled."""
    rng = np.random.default_rng(0)
    classes = len(per_class)
    y_train = rng.permutation(np.repeat(np.arange(classes), per_class))
    y_test = np.repeat(np.arange(classes), tests_per_class)

    def table(records: int) -> np.ndarray:
        rows = np.arange(records, dtype=np.float32)
        return np.stack([rows, rows**2], axis=1)

    def named(records: int) -> np.ndarray | None:
        return np.array([f"site {row % groups}" for row in range(records)]) if groups else None

    return Dataset(
        name="rows",
        x_train=table(len(y_train)),
        y_train=y_train,
        x_test=table(len(y_test)),
        y_test=y_test,
        class_names=tuple(f"class {c}" for c in range(classes)),
        group_train=named(len(y_train)),
        group_test=named(len(y_test)),
    )


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Dataset]:
    return build
