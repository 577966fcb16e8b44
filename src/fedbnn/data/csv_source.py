"""Data sets from a CSV file: numeric features, a column of classes or of targets and, optionally, one of clients."""

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded
from fedbnn.base.wording import did_you_mean, listing
from fedbnn.data.dataset import Dataset, Floats, Labels, Names, Targets
from fedbnn.data.holdout import fixed_split
from fedbnn.data.tables.layout import MISSING, decoded, delimiter_of
from fedbnn.models.regression import Scale

LARGEST = float(np.finfo(np.float32).max)
CONTINUOUS = 20  # more values than this, not all whole, are no classes

Row = tuple[int, list[str]]


def load_csv(
    path: str,
    target: str,
    client_column: str,
    test_fraction: float,
    delimiter: str = "auto",
    scale: Scale | None = None,
) -> Dataset:
    """Read a table with a header row and hold out the same share of every class (and client) for testing.

    With a scale the target is a real number. The split does not depend on a run's seed: runs with different seeds are
    scored on the same records.
    """
    table = Table.read(Path(path), f"data.path = {path!r}", delimiter)
    header = table.header
    target_at = table.column("data.target", target)
    client_at = table.column("data.client_column", client_column) if client_column else None
    if client_at == target_at:
        raise UserError(f"data.client_column and data.target are both {target!r}; they must differ")
    features = [at for at in range(len(header)) if at not in (target_at, client_at)]
    if not features:
        raise UserError(f"data.path = {path!r} has no feature column beside {listing(header)}")

    x = table.numbers(features)
    texts = table.texts(target_at)
    for (line, _), text in zip(table.rows, texts, strict=True):
        if text in MISSING:
            raise missing_target(f"{table.origin}, line {line}", target, text)
    places = [f"{table.origin}, line {line}" for line, _ in table.rows]
    y, class_names = targets_of(texts, places, target, scale)
    groups = None if client_at is None else np.array(table.texts(client_at), dtype=np.str_)
    together = f"{target!r}" if client_at is None else f"{target!r} and {client_column!r}"
    train, test = tested(strata_of(y), groups, test_fraction, f"data.path = {path!r}", together)
    return Dataset(
        name=Path(path).stem,
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        class_names=class_names,
        group_train=None if groups is None else groups[train],
        group_test=None if groups is None else groups[test],
        scale=scale,
    )


def targets_of(
    texts: list[str], places: Sequence[str], target: str, scale: Scale | None, decimal: str = "."
) -> tuple[Targets, tuple[str, ...]]:
    """Labels and the names of their classes, or with a scale real numbers and none."""
    return classes_of(texts, target) if scale is None else (numbers_of(texts, places, target, decimal), ())


def numbers_of(texts: Sequence[str], places: Sequence[str], target: str, decimal: str = ".") -> Floats:
    """A column of real numbers; `places` say of each record where it stands."""
    found = [number(text, decimal) for text in texts]
    for place, text, value in zip(places, texts, found, strict=True):
        if value is None:
            raise UserError(
                f"{place}: column {target!r} {f'holds {text!r}' if text else 'has no value'}; in regression every "
                "record needs a finite number (data.decimal declares a decimal comma)"
            )
    return np.array(found, dtype=np.float32)


def strata_of(y: Targets) -> Labels:
    """Of what the same share is held out: of each class, or of all records together where there is none."""
    return y.astype(np.int64) if y.dtype.kind == "i" else np.zeros(len(y), dtype=np.int64)


def tested(
    y: Labels, groups: Names | None, fraction: float, origin: str, together: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows to test on, the same share of every class of every client.

    `together` names the columns of both in the error where there is nothing to hold out.
    """
    strata = y
    if groups is not None:
        strata = y + (int(y.max()) + 1) * np.unique(groups, return_inverse=True)[1]
    strata = np.unique(strata, return_inverse=True)[1].astype(np.int64)
    train, test = fixed_split(strata, max(1, round(fraction * len(strata))))
    if test.size == 0:
        raise UserError(
            f"{origin}: no two records share a value of {together}, so none can be held out "
            "for testing; is that a column of classes?"
        )
    return train, test


def missing_target(where: str, target: str, text: str) -> UserError:
    holds = f"holds {text!r}, which stands for a missing value" if text else "has no value"
    return UserError(
        f"{where}: column {target!r} {holds}; every record needs a class: leave such records out (data.missing says "
        "which texts stand for a missing value)"
    )


@dataclass(frozen=True)
class Table:
    """A header and rows of as many cells, each with the line it ends on; `origin` is how errors name the file."""

    origin: str
    header: list[str]
    rows: list[Row]

    @classmethod
    def read(cls, path: Path, origin: str, delimiter: str = "auto", encoding: str = "auto") -> "Table":
        """A file with a header row; see `fedbnn.data.tables.layout` for what "auto" finds."""
        file = expanded(path, origin)
        try:
            text = decoded(file.read_bytes(), encoding)
            sign = delimiter_of(text) if delimiter == "auto" else delimiter
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign)
            table = [(reader.line_num, row) for row in reader if row]
        except FileNotFoundError:
            raise UserError(f"{origin}: there is no such file") from None
        except OSError as error:
            raise UserError(f"{origin}: cannot be read: {error.strerror}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{origin} is not a CSV file in {encoding}: {error}") from None
        if len(table) < 2:
            raise UserError(f"{origin} has no records; a header row and records below it are needed")
        header = [name.strip() for name in table[0][1]]
        if "" in header:
            raise UserError(f"{origin}: column {header.index('') + 1} has no name in the header row")
        if repeated := [name for name, count in Counter(header).items() if count > 1]:
            raise UserError(
                f"{origin} has more than one column {listing(repeated)}; its columns are: {listing(header)}"
            )
        for line, row in table[1:]:
            if len(row) != len(header):
                raise UserError(f"{origin}, line {line}: {len(row)} cell(s), but the header has {len(header)}")
        return cls(origin, header, table[1:])

    def column(self, field: str, name: str) -> int:
        """Where the column is that a setting names."""
        if name not in self.header:
            raise UserError(
                f"{field} = {name!r} is not a column of {self.origin}; its columns are: {listing(self.header)}"
                f"{did_you_mean(name, self.header)}"
            )
        return self.header.index(name)

    def numbers(self, columns: Sequence[int], *, or_nan: bool = False) -> Floats:
        """These columns, in this order; a cell that holds no finite number is an error, or with `or_nan` NaN."""
        x = np.empty((len(self.rows), len(columns)), dtype=np.float32)
        for record, (line, row) in enumerate(self.rows):
            cells = [row[at] for at in columns]
            numbers = [number(cell) for cell in cells]
            if None in numbers and not or_nan:
                first = numbers.index(None)
                what = "is empty" if not cells[first].strip() else f"holds {cells[first]!r}"
                raise UserError(
                    f"{self.origin}, line {line}: column {self.header[columns[first]]!r} {what}; "
                    "features must be finite numbers (data.columns declares text, data.decimal a decimal comma)"
                )
            x[record] = [math.nan if number is None else number for number in numbers]
        return x

    def texts(self, at: int) -> list[str]:
        """One column of names."""
        texts = [row[at].strip() for _, row in self.rows]
        if "" in texts:
            line = self.rows[texts.index("")][0]
            raise UserError(f"{self.origin}, line {line}: column {self.header[at]!r} is empty")
        return texts


def number(text: str, decimal: str = ".") -> float | None:
    """The finite number that a cell holds, or None; signs between thousands are none of a number."""
    if decimal != ".":
        text = text.replace(".", "?").replace(decimal, ".")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def class_name(text: str) -> str:
    """What a class is called: a number is written in one way only, so that 2 and 2.0 are one class."""
    value = number(text)
    return text if value is None else _written(value)


def _written(value: float) -> str:
    return str(int(value)) if math.floor(value) == value else str(value)


def classes_of(texts: list[str], target: str) -> tuple[Labels, tuple[str, ...]]:
    """Labels in sorted order: by value where every class is a number (2 before 10), else by text."""
    parsed = [number(text) for text in texts]
    numbers = [value for value in parsed if value is not None]
    if len(numbers) == len(texts):
        values = sorted(set(numbers))
        fractions = [value for value in values if not value.is_integer()]
        if fractions and len(values) > CONTINUOUS:
            raise UserError(
                f"data.target = {target!r} holds {len(values)} different numbers, such as {_written(fractions[0])}: it "
                "is continuous: set data.task = 'regression', or cut it into a few ranges in a column of its own, and "
                "name that"
            )
        return np.searchsorted(values, numbers).astype(np.int64), tuple(_written(value) for value in values)
    ordered = sorted(set(texts))
    position = {text: index for index, text in enumerate(ordered)}
    return np.array([position[text] for text in texts], dtype=np.int64), tuple(ordered)
