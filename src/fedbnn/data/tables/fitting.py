"""From declared columns and public records to a coding. No private record is ever looked at here.

A column that is not declared has the kind that its public values have: numbers, words for yes and no, dates, or a few
texts that repeat. Missing values are filled with the public median or, where no public value is there, the middle of
what is declared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.data.tables import cells, identifying
from fedbnn.data.tables.coding import Coding, ColumnCode
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.raw import Cells, RawTable

MOST_VALUES = 20  # of a text that is guessed to be a category
MOSTLY = 0.5


def fit(
    names: Sequence[str], declared: Mapping[str, ColumnSettings], public: RawTable, field: str = "data.columns"
) -> tuple[Coding, list[str]]:
    """The coding of these columns, and what was guessed, in words."""
    codes, told = [], []
    for name in names:
        column = public.columns[name]
        settings = declared.get(name) or _guessed(name, column, public.decimal, field)
        if name not in declared:
            told.append(_words(name, settings))
        if settings.kind != "ignore":
            codes.append(_fitted(name, settings, column, public.decimal, f"{field}.{name}"))
    if not any(code.features for code in codes):
        raise UserError(f"{field}: no column is left to learn from ({listing(names)}); declare one that is not an id")
    return Coding(tuple(codes)), told


def _words(name: str, settings: ColumnSettings) -> str:
    guess = f"column {name!r} is not declared; by the public records"
    if settings.kind == "ignore":
        return f"{guess} it is left out: its texts hardly repeat, or it is always missing"
    values = f" of {listing(settings.values)}" if settings.kind == "category" else ""
    return f"{guess} it is taken as {settings.kind}{values}"


def _guessed(name: str, column: Cells, decimal: str, field: str) -> ColumnSettings:
    there = [cell for cell in column if cell is not None]
    if not column:
        raise UserError(
            f"{field} does not declare column {name!r}, and there are no public records to guess its kind from; "
            f"declare it ([{field}.{name}], kind = ...) or raise data.alignment"
        )
    if not there:
        return ColumnSettings("ignore")
    if identifying.named(name) and identifying.distinct(column) > MOSTLY:
        return ColumnSettings("id")
    if not np.isnan([cells.numbers(decimal)(cell) for cell in there]).any():
        return ColumnSettings("number")
    if not np.isnan([cells.booleans()(cell) for cell in there]).any():
        return ColumnSettings("boolean")
    if not np.isnan([cells.days()(cell) for cell in there]).any():
        return ColumnSettings("date")
    values = sorted(set(there))
    if len(values) <= min(MOST_VALUES, len(there) / 2):
        return ColumnSettings("category", values=tuple(values))
    return ColumnSettings("ignore")


def _fitted(name: str, settings: ColumnSettings, column: Cells, decimal: str, field: str) -> ColumnCode:
    code = ColumnCode(name, settings.kind, settings.unit, settings.low, settings.high, settings.values, settings.format)
    if settings.kind == "category":
        if not settings.values:
            values = tuple(sorted({cells.category(cell) for cell in column if cell is not None}))
            if not values:
                raise UserError(f"{field}: there is no public value to learn its categories from; declare values")
            code = replace(code, values=values)
        return code
    if settings.kind == "id":
        return code
    read = code.read(column, decimal)
    unreadable = read.problems[f"no {settings.kind}"]
    there = ~read.missing
    if unreadable.sum() > MOSTLY * (there | unreadable).sum():
        first = column[int(unreadable.argmax())]
        raise UserError(
            f"{field}.kind = '{settings.kind}', but most public records hold something else, such as {first!r}; change "
            "the kind, or say how it is written (data.decimal, format, values, data.missing)"
        )
    fill = float(np.median(read.values[there])) if there.any() else code.middle
    if fill is None:
        raise UserError(
            f"{field}: no public record has a value, so there is none to fill in for missing ones; declare low and high"
        )
    optional = bool(read.missing.any()) if settings.optional is None else settings.optional
    return replace(code, fill=float(np.round(fill)) if settings.kind == "date" else fill, optional=optional)
