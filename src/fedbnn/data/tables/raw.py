"""A table as it was read: every cell is a text or missing, every record knows its file and line."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded
from fedbnn.base.wording import did_you_mean, listing, one_line
from fedbnn.data.csv_source import Table, class_name, number
from fedbnn.data.identity import HALF, Identity, identify
from fedbnn.data.tables.layout import Layout

Cells = tuple[str | None, ...]


class Place(NamedTuple):
    """Where a record was read."""

    origin: str
    line: int

    def __str__(self) -> str:
        return f"{self.origin}, line {self.line}"


@dataclass(frozen=True, eq=False)
class RawTable:
    """Columns by name, all as long as `places`.

    Attributes:
        decimal: the sign that numbers in them have.
        markers: texts that stand for a missing value unless somebody declares them as a column's value.

    """

    columns: Mapping[str, Cells]
    places: tuple[Place, ...]
    decimal: str = "."
    markers: Collection[str] = ()

    def __len__(self) -> int:
        return len(self.places)

    def take(self, rows: NDArray[np.int64]) -> "RawTable":
        chosen = rows.tolist()
        columns = {name: tuple(cells[row] for row in chosen) for name, cells in self.columns.items()}
        return replace(self, columns=columns, places=tuple(self.places[row] for row in chosen))

    def only(self, names: Sequence[str]) -> "RawTable":
        """The same records with these columns."""
        return replace(self, columns={name: self.columns[name] for name in names})

    def column(self, field: str, name: str) -> Cells:
        """The column that a setting names."""
        if name not in self.columns:
            raise UserError(
                f"{field} = {name!r} is not a column of {self.places[0].origin}; its columns are: "
                f"{listing(self.columns)}{did_you_mean(name, self.columns)}"
            )
        return self.columns[name]

    def identity(self, labels: Sequence[str]) -> Identity:
        """Which records these are, as `fedbnn.data.identity` has it, by the texts of their cells.

        All columns have a part in it, whatever a run makes of them: how missing values are filled, which
        values have a feature and which columns are left out is decided by others, who must not be able to make the same
        records look new. A record of numbers alone is the one it is where a table is read as plain numbers.
        """
        rows = np.empty((len(self), 2 * HALF), dtype=np.uint8)
        for at, (row, label) in enumerate(zip(rows, labels, strict=True)):
            texts = sorted(self._canonical(cells[at]) for cells in self.columns.values())
            numbers = [number(text) for text in texts]
            if None not in numbers:
                row[:] = identify(np.array([numbers], dtype=np.float32), [label])[0]
                continue
            digest = hashlib.sha256("\0".join(texts).encode())
            row[:HALF] = np.frombuffer(digest.digest()[:HALF], np.uint8)
            digest.update(b"|" + label.encode())
            row[HALF:] = np.frombuffer(digest.digest()[:HALF], np.uint8)
        return rows

    def _canonical(self, cell: str | None) -> str:
        """A number is written in one way only, and so is what is missing."""
        if cell is None or cell in self.markers:
            return ""
        value = number(cell, self.decimal)
        return cell if value is None else class_name(repr(value))


def joined(tables: Sequence[RawTable]) -> RawTable:
    """The records of tables that all have the columns of the first, in whichever order."""
    first = tables[0]
    columns = {name: tuple(cell for table in tables for cell in table.columns[name]) for name in first.columns}
    return replace(first, columns=columns, places=tuple(place for table in tables for place in table.places))


@dataclass(frozen=True)
class TableReader:
    """Reads files of one layout.

    `kept` has, by column, the texts that are values there, also if elsewhere they stand for a missing one; columns of
    `ignored` are not read.
    """

    layout: Layout
    kept: Mapping[str, Collection[str]]
    ignored: Collection[str] = ()

    def read(self, path: Path, origin: str, source: str) -> RawTable:
        """A file of this source, "csv" or "parquet"."""
        return self._parquet(path, origin) if source == "parquet" else self._csv(path, origin)

    def _csv(self, path: Path, origin: str) -> RawTable:
        table = Table.read(path, origin, self.layout.delimiter, self.layout.encoding)
        columns = {
            name: tuple(self._cell(name, row[at].strip()) for _, row in table.rows)
            for at, name in enumerate(table.header)
            if name not in self.ignored
        }
        places = tuple(Place(origin, line) for line, _ in table.rows)
        return RawTable(columns, places, self.layout.decimal, self.layout.missing)

    def _parquet(self, path: Path, origin: str) -> RawTable:
        try:
            from pyarrow import parquet  # noqa: PLC0415 (an extra)
        except ImportError:
            raise UserError(f"{origin}: Parquet files need pyarrow: pip install 'fedbnn[parquet]'") from None
        file = expanded(path, origin)
        try:
            with file.open("rb") as stream:
                read = parquet.ParquetFile(stream).read()
                read.validate(full=True)
                values = [column.to_pylist() for column in read.columns]
        except FileNotFoundError:
            raise UserError(f"{origin}: there is no such file") from None
        except Exception as error:  # Arrow fails in many ways where a file is made up
            reason = one_line(str(error) or type(error).__name__, 300)
            raise UserError(f"{origin}: cannot be read: {reason}") from None
        names = [str(name).strip() for name in read.column_names]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise UserError(f"{origin} has more than one column {listing(sorted(repeated))}")
        return self.of_values(dict(zip(names, values, strict=True)), origin)

    def of_values(self, values: Mapping[str, Sequence[Any]], origin: str) -> RawTable:
        """Columns of Python's own values, None where one is missing."""
        records = len(next(iter(values.values()), ()))
        if not records:
            raise UserError(f"{origin} has no records")
        columns = {
            name: tuple(None if text is None else self._cell(name, text) for text in _texts(origin, name, column))
            for name, column in values.items()
            if name not in self.ignored
        }
        places = tuple(Place(origin, row + 1) for row in range(records))
        return RawTable(columns, places, markers=self.layout.missing)

    def _cell(self, column: str, text: str) -> str | None:
        absent = not text or text in self.layout.missing
        return None if absent and text not in self.kept.get(column, ()) else text


def _texts(origin: str, name: str, column: Sequence[Any]) -> list[str | None]:
    """A column of Parquet as a person would write it."""
    plain = (str, bool, int, float)
    texts: list[str | None] = []
    for value in column:
        if value is None or value != value:  # noqa: PLR0124 (NaN)
            texts.append(None)
        elif isinstance(value, plain) or hasattr(value, "as_tuple"):  # or a decimal number
            texts.append(str(value).strip())
        elif hasattr(value, "isoformat"):
            texts.append(value.isoformat())
        else:
            raise UserError(
                f"{origin}: column {name!r} holds {type(value).__name__} values; declare it as "
                f"data.columns.{name}.kind = 'ignore'"
            )
    return texts
