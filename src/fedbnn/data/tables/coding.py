"""From a table's cells to features: plain data that is fitted once, on public records, and then only applied.

    number     1 feature: its value, within low .. high
    boolean    1 feature: 0 or 1
    category   1 feature for each value, and one for all others, missing ones too: exactly one of them is 1
    date       3 features: years since 2000-01-01, and sin and cos of 2 pi (month - 1) / 12
    id         none

A missing number, boolean or date is filled in, and where the column may be missing (`optional`) one more feature is 1.
A cell that is not of its column's kind counts as missing. Scaling comes after all this, as for other inputs.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, field_validator, model_validator

from fedbnn.base.settings import parsed, settings
from fedbnn.data.csv_source import LARGEST
from fedbnn.data.dataset import Floats
from fedbnn.data.tables import cells
from fedbnn.data.tables.columns import ColumnSettings, Kind
from fedbnn.data.tables.raw import Cells, RawTable

DAYS_A_YEAR = 365.25
MOST_FEATURES = 100_000

Mask = NDArray[np.bool_]


@settings
class ColumnCode:
    """One column as everybody reads it."""

    name: str = Field(min_length=1, max_length=200, description="as it stands in a header row")
    kind: Kind = Field(description="number, category, boolean, date or id")
    unit: str = Field(default="", description="of a number")
    low: float | None = Field(default=None, ge=-LARGEST, le=LARGEST, description="the least value; of a date, a year")
    high: float | None = Field(
        default=None, ge=-LARGEST, le=LARGEST, description="the greatest value; of a date, a year"
    )
    values: tuple[str, ...] = Field(default=(), description="of a category; of a boolean, its words for no and yes")
    format: str = Field(default="", description="of a date")
    fill: float = Field(
        default=0.0,
        ge=-LARGEST,
        le=LARGEST,
        description="stands for a missing value; of a date, in days since 2000-01-01",
    )
    optional: bool = Field(default=False, description="whether a feature tells that the value is missing")

    @model_validator(mode="after")
    def _is_one(self) -> "ColumnCode":
        if self.kind == "ignore":
            raise ValueError("kind = 'ignore' has no part in a coding; leave the column out")
        if self.kind == "date" and not -730119 <= self.fill <= 2921939:
            raise ValueError("fill of a date is a number of days since 2000-01-01")
        self.declared()
        return self

    def declared(self) -> ColumnSettings:
        """What a user would declare of it."""
        return ColumnSettings(
            self.kind, self.unit, self.low, self.high, self.values, self.format, True if self.optional else None
        )

    @property
    def features(self) -> list[str]:
        """Their names."""
        match self.kind:
            case "id":
                return []
            case "category":
                return [*(f"{self.name} = {value}" for value in self.values), f"{self.name}: other"]
            case "date":
                names = [f"{self.name}: years", f"{self.name}: sin", f"{self.name}: cos"]
            case _:
                names = [self.name]
        return [*names, f"{self.name}: missing"] if self.optional else names

    def read(self, column: Cells, decimal: str) -> "ReadColumn":
        """Values of these cells, and what is wrong with which."""
        missing = np.array([cell is None for cell in column], dtype=np.bool_)
        if self.kind == "id":
            return ReadColumn(np.zeros(len(column)), missing, {})
        if self.kind == "category":
            index = {cells.category(value): at for at, value in enumerate(self.values)}
            other = len(self.values)
            found = [other if cell is None else index.get(cells.category(cell), other) for cell in column]
            values = np.array(found, dtype=np.float64)
            return ReadColumn(values, missing, {"not one of its values": (values == other) & ~missing})
        reader = (
            cells.days(self.format)
            if self.kind == "date"
            else cells.booleans(self.values)
            if self.kind == "boolean"
            else cells.numbers(decimal)
        )
        values = np.array([np.nan if cell is None else reader(cell) for cell in column], dtype=np.float64)
        unreadable = np.isnan(values) & ~missing
        problems = {f"no {self.kind}": unreadable}
        low, high = self._range
        if low is not None:
            problems[f"below {self.low:g}"] = values < low
        if high is not None:
            problems[f"above {self.high:g}"] = values > high
        values = np.clip(values, low, high) if (low, high) != (None, None) else values
        return ReadColumn(np.where(np.isnan(values), self.fill, values), missing | unreadable, problems)

    @property
    def _range(self) -> tuple[float | None, float | None]:
        if self.kind != "date":
            return self.low, self.high
        return (
            None if self.low is None else cells.day_of_year(self.low, 1, 1),
            None if self.high is None else cells.day_of_year(self.high, 12, 31),
        )

    @property
    def middle(self) -> float | None:
        """Of what is declared: of the range, or of no and yes."""
        low, high = self._range
        if self.kind == "boolean":
            return 0.5
        return None if low is None or high is None else (low + high) / 2

    def encoded(self, read: "ReadColumn") -> list[NDArray[np.float64]]:
        """A column of numbers for each feature."""
        match self.kind:
            case "id":
                return []
            case "category":
                return [(read.values == at).astype(np.float64) for at in range(len(self.values) + 1)]
            case "date":
                turn = np.array([2 * np.pi * (cells.month_of(day) - 1) / 12 for day in read.values])
                features = [read.values / DAYS_A_YEAR, np.sin(turn), np.cos(turn)]
            case _:
                features = [read.values]
        return [*features, read.missing.astype(np.float64)] if self.optional else features


@dataclass(frozen=True, eq=False)
class ReadColumn:
    """A column's values, filled; of a category, their indices. Which were missing, and which are wrong and how."""

    values: NDArray[np.float64]
    missing: Mask
    problems: Mapping[str, Mask]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Features of some records, and of each column what is wrong with which."""

    x: Floats
    problems: Mapping[str, Mapping[str, Mask]]

    def flags(self) -> list[str]:
        """What is wrong with each record, in words; mostly nothing."""
        words: list[list[str]] = [[] for _ in self.x]
        for name, kinds in self.problems.items():
            for problem, where in kinds.items():
                for row in np.flatnonzero(where):
                    words[row].append(f"{name}: {problem}")
        return ["; ".join(one) for one in words]

    def counts(self) -> list[str]:
        """How often something is wrong with a column, in words."""
        return [
            f"column {name!r}: {int(where.sum())} value(s) {problem}"
            for name, kinds in self.problems.items()
            for problem, where in kinds.items()
            if where.any()
        ]


@settings
class Coding:
    """Every column that is read, in the order of their features."""

    columns: tuple[ColumnCode, ...] = Field(min_length=1, description="the columns")

    @field_validator("columns")
    @classmethod
    def _each_once(cls, columns: tuple[ColumnCode, ...]) -> tuple[ColumnCode, ...]:
        check_columns(columns)
        return columns

    @classmethod
    def from_json(cls, text: str | bytes, origin: str) -> "Coding":
        return parsed(cls, text, origin)

    def to_json(self) -> str:
        return json.dumps(TypeAdapter(Coding).dump_python(self, mode="json"), indent=2, ensure_ascii=False) + "\n"

    @cached_property
    def features(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.features)

    @property
    def kept(self) -> dict[str, Collection[str]]:
        """Texts that are values of their column and never missing, for `TableReader`."""
        return {column.name: column.values for column in self.columns if column.values}

    @property
    def ids(self) -> list[str]:
        """Columns that are told beside predictions."""
        return [column.name for column in self.columns if column.kind == "id"]

    def encode(self, table: RawTable, called: Mapping[str, str] | None = None) -> Encoded:
        """Features of a table that has these columns; `called` has their names in the table, where they are others.

        Columns of ids need not be there.
        """
        called = called or {}
        read = {
            column: column.read(table.columns[called.get(column.name, column.name)], table.decimal)
            for column in self.columns
            if column.kind != "id"
        }
        features = [feature for column, values in read.items() for feature in column.encoded(values)]
        x = np.stack(features, axis=1).astype(np.float32)
        return Encoded(x, {column.name: values.problems for column, values in read.items()})


def check_columns(columns: Iterable[ColumnCode]) -> None:
    """ValueError where these are no coding."""
    names = [column.name for column in columns]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"column {repeated[0]!r} stands there more than once")
    if not any(column.features for column in columns):
        raise ValueError("no column has a feature: declare at least one that is not an id")
    if sum(len(column.features) for column in columns) > MOST_FEATURES:
        raise ValueError(f"columns have more than {MOST_FEATURES} features")
