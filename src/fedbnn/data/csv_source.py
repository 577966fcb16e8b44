"""Data sets from a CSV file: numeric features, one column of classes and, optionally, one of clients."""

import csv
import math
from collections import Counter
from pathlib import Path

import numpy as np

from fedbnn.data.dataset import Dataset, Floats, Labels
from fedbnn.data.holdout import stratified_holdout
from fedbnn.data.nearest import did_you_mean, listing
from fedbnn.errors import UserError

LARGEST = float(np.finfo(np.float32).max)
SPLIT_SEED = 0

Row = tuple[int, list[str]]


def load_csv(path: str, target: str, client_column: str, test_fraction: float) -> Dataset:
    """Read a table with a header row and hold out the same share of every class (and client) for testing.

    The split does not depend on a run's seed: runs with different seeds are scored on the same records.
    """
    header, rows = _read(path)
    target_at = _column(path, header, "data.target", target)
    client_at = _column(path, header, "data.client_column", client_column) if client_column else None
    if client_at == target_at:
        raise UserError(f"data.client_column and data.target are both {target!r}; they must differ")
    features = [at for at in range(len(header)) if at not in (target_at, client_at)]
    if not features:
        raise UserError(f"data.path = {path!r} has no feature column beside {listing(header)}")

    x = _features(path, header, features, rows)
    y, class_names = _classes(_texts(path, header, target_at, rows))
    groups = None if client_at is None else np.array(_texts(path, header, client_at, rows), dtype=np.str_)

    strata = y
    if groups is not None:
        strata = y + len(class_names) * np.unique(groups, return_inverse=True)[1]
    strata = np.unique(strata, return_inverse=True)[1].astype(np.int64)
    count = max(1, round(test_fraction * len(rows)))
    test = stratified_holdout(strata, count, np.random.default_rng(SPLIT_SEED))
    if test.size == 0:
        together = f"{target!r}" if client_at is None else f"{target!r} and {client_column!r}"
        raise UserError(
            f"data.path = {path!r}: no two records share a value of {together}, so none can be held out "
            "for testing; is that a column of classes?"
        )
    train = np.setdiff1d(np.arange(len(rows)), test)
    return Dataset(
        name=Path(path).stem,
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        class_names=class_names,
        group_train=None if groups is None else groups[train],
        group_test=None if groups is None else groups[test],
    )


def _read(path: str) -> tuple[list[str], list[Row]]:
    """The header and the rows, each with the line it ends on."""
    try:
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            table = [(reader.line_num, row) for row in reader if row]
    except FileNotFoundError:
        raise UserError(f"data.path = {path!r}: there is no such file") from None
    except OSError as error:
        raise UserError(f"data.path = {path!r}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"data.path = {path!r} is not a CSV file in UTF-8: {error}") from None
    if len(table) < 2:
        raise UserError(f"data.path = {path!r} has no records; a header row and records below it are needed")
    header = [name.strip() for name in table[0][1]]
    if "" in header:
        raise UserError(f"data.path = {path!r}: column {header.index('') + 1} has no name in the header row")
    if repeated := [name for name, count in Counter(header).items() if count > 1]:
        raise UserError(
            f"data.path = {path!r} has more than one column {listing(repeated)}; its columns are: {listing(header)}"
        )
    for line, row in table[1:]:
        if len(row) != len(header):
            raise UserError(f"data.path = {path!r}, line {line}: {len(row)} cell(s), but the header has {len(header)}")
    return header, table[1:]


def _column(path: str, header: list[str], field: str, name: str) -> int:
    if name not in header:
        raise UserError(
            f"{field} = {name!r} is not a column of {path!r}; its columns are: {listing(header)}"
            f"{did_you_mean(name, header)}"
        )
    return header.index(name)


def _features(path: str, header: list[str], features: list[int], rows: list[Row]) -> Floats:
    x = np.empty((len(rows), len(features)), dtype=np.float32)
    for record, (line, row) in enumerate(rows):
        cells = [row[at] for at in features]
        numbers = [_number(cell) for cell in cells]
        if None in numbers:
            first = numbers.index(None)
            what = "is empty" if not cells[first].strip() else f"holds {cells[first]!r}"
            raise UserError(
                f"data.path = {path!r}, line {line}: column {header[features[first]]!r} {what}; "
                "features must be finite numbers"
            )
        x[record] = numbers
    return x


def _number(text: str) -> float | None:
    """The finite number that a cell holds, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def _texts(path: str, header: list[str], at: int, rows: list[Row]) -> list[str]:
    texts = [row[at].strip() for _, row in rows]
    if "" in texts:
        line = rows[texts.index("")][0]
        raise UserError(f"data.path = {path!r}, line {line}: column {header[at]!r} is empty")
    return texts


def _classes(texts: list[str]) -> tuple[Labels, tuple[str, ...]]:
    """Labels in sorted order: by value where every class is a number (2 before 10), else by text."""
    parsed = [_number(text) for text in texts]
    numbers = [value for value in parsed if value is not None]
    if len(numbers) == len(texts):
        values = sorted(set(numbers))
        names = tuple(str(int(value)) if math.floor(value) == value else str(value) for value in values)
        return np.searchsorted(values, numbers).astype(np.int64), names
    ordered = sorted(set(texts))
    position = {text: index for index, text in enumerate(ordered)}
    return np.array([position[text] for text in texts], dtype=np.int64), tuple(ordered)
