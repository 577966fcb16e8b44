"""A public table for clients that have none: made-up records from a copula that is fitted under differential privacy.

Columns must be declared with everything that would otherwise be learned from records: the range of numbers and dates,
the values of categories. Two noisy sums leave each client (`privacy.copula`), each charged to its ledger. What is made
from them, any number of records, costs nothing more, and can be given to anybody.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.data import FederatedData, federate
from fedbnn.data.sources import raw_tables
from fedbnn.data.tables.cells import EPOCH, day_of_year
from fedbnn.data.tables.coding import ColumnCode
from fedbnn.data.tables.dataset import TableDataset
from fedbnn.data.tables.layout import Layout
from fedbnn.federation.sites import place_of
from fedbnn.privacy import Account, Budget, Plan
from fedbnn.privacy.copula import RELEASES, Column, Copula, CopulaGate, fit_copula
from fedbnn.runs.config import Config

Doubles = NDArray[np.float64]

RUN = "alignment"
"""Under this name the ledgers have what was spent."""


def made_up(config: Config, budget: Budget, ledgers: Path) -> tuple[Copula, tuple[ColumnCode, ...]]:
    """The copula of all clients' training records, and the columns it is of.

    A client's ledgers are in the place of its name in the folder; nothing of it is released beyond the budget.
    """
    table = raw_tables(config.data)
    if table is None:
        raise UserError(
            f"data.source = {config.data.source!r}: records can be made up for tables (csv, parquet); for images set "
            "data.alignment_source to noise, leaves or fractals"
        )
    data = _dealt(config, table)
    assert data.coding is not None
    codes = tuple(code for code in data.coding.columns if code.kind != "id")
    columns = tuple(_column(code) for code in codes)
    plan = Plan.of(budget.delta, epsilon=budget.epsilon, releases=RELEASES, multiplicity=data.multiplicity)
    gates = []
    for client, name in enumerate(data.client_names):
        raw = table.train.take(data.client_indices[client])
        values = np.stack([_values(code, raw.columns[code.name], raw.decimal) for code in codes], axis=1)
        account = Account(place_of(name, ledgers), data.identity(client), name, budget, run=RUN)
        gates.append(CopulaGate(columns, values, plan, account))
    return fit_copula(gates), codes


def written(codes: Sequence[ColumnCode], made: Doubles, layout: Layout) -> str:
    """Made-up records as a CSV file that is read as the clients' own files are."""
    sign = layout.delimiter if layout.delimiter != "auto" else ";" if layout.decimal == "," else ","
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=sign, lineterminator="\n")
    writer.writerow([code.name for code in codes])
    columns = [[_text(code, value, layout.decimal) for value in made[:, at]] for at, code in enumerate(codes)]
    writer.writerows(zip(*columns, strict=True))
    return stream.getvalue()


def _dealt(config: Config, table: TableDataset) -> FederatedData:
    """Who holds which records where none is public; only then is everything declared that has to be."""
    undeclared = [name for name in table.names if name not in config.data.columns]
    if undeclared:
        raise UserError(
            f"data.columns does not declare {listing(undeclared)}: without public records nothing can be guessed; "
            "declare each (kind, and its range or values), or its kind as ignore"
        )
    for name, column in config.data.columns.items():
        if column.kind in ("number", "date") and (column.low is None or column.high is None):
            raise UserError(
                f"data.columns.{name}: a {column.kind} needs low and high, which no record may decide"
                + (" (years)" if column.kind == "date" else "")
            )
        if column.kind == "category" and not column.values:
            raise UserError(f"data.columns.{name}: a category needs values, which no record may decide")
    alone = replace(config.data, alignment=0, alignment_source="", inputs="raw")
    return federate(table, alone, config.partition, config.seed)


def _column(code: ColumnCode) -> Column:
    match code.kind:
        case "category":
            return Column(code.name, levels=len(code.values) + 1)  # one for all others
        case "boolean":
            return Column(code.name, levels=2, may_miss=code.optional)
    assert code.low is not None
    assert code.high is not None
    if code.kind == "date":
        return Column(code.name, day_of_year(code.low, 1, 1), day_of_year(code.high, 12, 31), may_miss=code.optional)
    return Column(code.name, code.low, code.high, may_miss=code.optional)


def _values(code: ColumnCode, cells: tuple[str | None, ...], decimal: str) -> Doubles:
    """What the copula sees: values within their range, levels as whole numbers, NaN where none is there."""
    read = code.read(cells, decimal)
    if code.kind == "category":
        return read.values
    return np.where(read.missing, np.nan, read.values)


def _text(code: ColumnCode, value: float, decimal: str) -> str:
    if math.isnan(value):
        return ""
    match code.kind:
        case "category":
            return code.values[int(value)] if int(value) < len(code.values) else ""
        case "boolean":
            return (code.values or ("0", "1"))[int(value)]
        case "date":
            day = EPOCH + timedelta(days=round(value))
            return day.strftime(code.format) if code.format else day.isoformat()
    return f"{value:.6g}".replace(".", decimal)
