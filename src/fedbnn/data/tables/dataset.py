"""A data set of tables: split into train and test, with classes and clients, its columns not yet features.

What becomes a feature, and how, is fitted on public records (`fedbnn.data.tables.fitting`), and which records are
public is known only once they are drawn: `federate` does it, and encodes all others with what those taught.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded, is_folder
from fedbnn.base.wording import listing
from fedbnn.data.csv_source import classes_of, missing_target, strata_of, targets_of, tested
from fedbnn.data.dataset import Dataset, Floats, Labels, Names, Targets
from fedbnn.data.identity import Identity
from fedbnn.data.tables.coding import Coding
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.fitting import fit
from fedbnn.data.tables.layout import Layout
from fedbnn.data.tables.raw import RawTable, TableReader, joined
from fedbnn.data.targets import target_texts
from fedbnn.models.regression import Scale

ENDINGS: Mapping[str, tuple[str, ...]] = {"csv": (".csv", ".tsv"), "parquet": (".parquet",)}


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedTables:
    """A data set as everybody else knows it, and what it was made with.

    Attributes:
        other_alignment: public records from elsewhere, encoded; None where they are rows of the data set.
        identities: of all training records as they were read.
        told: what was guessed; only public records have a part in it.
        oddities: what is wrong with which columns, and how often; it tells of private records.

    """

    dataset: Dataset
    coding: Coding
    other_alignment: Floats | None
    identities: Identity
    told: tuple[str, ...]
    oddities: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class TableDataset:
    """Records with labels, as `Dataset`, but for inputs, which are still cells.

    Attributes:
        train: the cells of the training records, with columns of ids and without target and clients.
        test: those of the test records.
        declared: what the user says of columns.
        reader: reads other files in the same way.
        names: columns that may become features, or are ids, in the order of the first file.

    """

    name: str
    train: RawTable
    test: RawTable
    y_train: Targets
    y_test: Targets
    class_names: tuple[str, ...]
    group_train: Names | None
    group_test: Names | None
    declared: Mapping[str, ColumnSettings]
    reader: TableReader
    names: tuple[str, ...]
    scale: Scale | None = None

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def first_tests(self, tests: int) -> "TableDataset":
        rows = np.arange(min(tests, len(self.y_test)))
        group = None if self.group_test is None else self.group_test[rows]
        return dataclasses.replace(self, test=self.test.take(rows), y_test=self.y_test[rows], group_test=group)

    def public_from(self, source: str, points: int, seed: int) -> RawTable:
        """So many records of another file, which has the same columns."""
        field = f"data.alignment_source = {source!r}"
        kind = next((kind for kind, endings in ENDINGS.items() if source.endswith(endings)), None)
        if kind is None:
            raise UserError(f"{field}: for tables it is a .csv or .parquet file with the same columns")
        table = self.reader.read(Path(source), field, kind)
        ids = [name for name in self.names if name in self.declared and self.declared[name].kind == "id"]
        table = dataclasses.replace(table, columns={name: (None,) * len(table) for name in ids} | dict(table.columns))
        check_has(table, self.names, field)
        if points > len(table):
            raise UserError(f"data.alignment = {points}, but {field} has only {len(table)} records; lower it")
        rows = np.random.default_rng([seed, *b"alignment"]).choice(len(table), points, replace=False)
        return table.take(np.sort(rows).astype(np.int64))

    def encoded(self, public: RawTable, *, elsewhere: bool) -> EncodedTables:
        """All records as features, by a coding that is fitted on `public` alone."""
        coding, told = fit(self.names, self.declared, public)
        train, test = coding.encode(self.train), coding.encode(self.test)
        labels = target_texts(self.y_train, self.class_names)
        dataset = Dataset(
            self.name,
            train.x,
            self.y_train,
            test.x,
            self.y_test,
            self.class_names,
            self.group_train,
            self.group_test,
            self.scale,
        )
        return EncodedTables(
            dataset,
            coding,
            coding.encode(public).x if elsewhere else None,
            self.train.identity(labels),
            tuple(told),
            tuple(train.counts()),
        )


def load_tables(
    path: str | tuple[str, ...],
    source: str,
    target: str,
    client_column: str,
    test_fraction: float,
    declared: Mapping[str, ColumnSettings],
    layout: Layout,
    scale: Scale | None = None,
) -> TableDataset:
    """Read one file, or several of which each is a client's, and hold out the same share of every class and client.

    As with `load_csv`, the split does not depend on a run's seed, and with a scale the target is a real number.
    """
    origin = f"data.path = {list(path) if isinstance(path, tuple) else path!r}"
    files = files_of(path, source, origin)
    reader = _reader(declared, layout)
    several = isinstance(path, tuple) or len(files) > 1 or files[0] != Path(path)
    if several and client_column:
        raise UserError(
            f"data.client_column = {client_column!r}, but {origin} is one file a client: leave one of them out"
        )
    check_roles(target, client_column, declared)
    tables = [reader.read(file, f"data.path = {str(file)!r}", source) for file in files]
    names = _names(tables, target, client_column, declared)
    whole = joined(tables)
    texts, places = _labels(whole, target), [str(place) for place in whole.places]
    y, class_names = targets_of(texts, places, target, scale, whole.decimal)
    groups = _groups(whole, tables, files, client_column) if several or client_column else None
    together = f"{target!r}" if groups is None else f"{target!r} and {client_column or 'file'!r}"
    train, test = tested(strata_of(y), groups, test_fraction, origin, together)
    return _divided(_name(path), whole, names, y, class_names, groups, train, test, declared, reader, scale)


def tables_of_values(
    halves: Sequence[Mapping[str, Sequence[Any]]],
    name: str,
    origin: str,
    target: str,
    client_column: str,
    test_fraction: float,
    declared: Mapping[str, ColumnSettings],
    layout: Layout,
) -> TableDataset:
    """Columns of Python's own values: records to train on and to test on, or all, of which a share is held out."""
    check_roles(target, client_column, declared)
    reader = _reader(declared, layout)
    tables = [reader.of_values(half, origin) for half in halves]
    names = _names(tables, target, client_column, declared)
    whole = joined(tables)
    y, class_names = classes_of(_labels(whole, target), target)
    groups = _groups(whole, tables, [], client_column) if client_column else None
    if len(tables) == 2:
        train, test = np.split(np.arange(len(whole)), [len(tables[0])])
    else:
        together = f"{target!r} and {client_column!r}" if client_column else f"{target!r}"
        train, test = tested(y, groups, test_fraction, origin, together)
    return _divided(name, whole, names, y, class_names, groups, train, test, declared, reader)


def _reader(declared: Mapping[str, ColumnSettings], layout: Layout) -> TableReader:
    ignored = [name for name, column in declared.items() if column.kind == "ignore"]
    kept = {name: column.values for name, column in declared.items() if column.values}
    return TableReader(layout, kept, ignored)


def check_roles(target: str, client_column: str, declared: Mapping[str, ColumnSettings]) -> None:
    """Refuse a column that is to be two things."""
    if client_column and client_column == target:
        raise UserError(f"data.client_column and data.target are both {target!r}; they must differ")
    for field, name in (("target", target), ("client_column", client_column)):
        if name in declared:
            raise UserError(f"data.columns.{name}: this column is data.{field}, which is no feature; leave it out")


def _names(
    tables: Sequence[RawTable], target: str, client_column: str, declared: Mapping[str, ColumnSettings]
) -> tuple[str, ...]:
    for table in tables:
        for field, name in (("target", target), ("client_column", client_column)):
            if name or field == "target":
                table.column(f"data.{field}", name)
    return _common(tables, (target, client_column), declared)


def _divided(
    name: str,
    whole: RawTable,
    names: tuple[str, ...],
    y: Targets,
    class_names: tuple[str, ...],
    groups: Names | None,
    train: Labels,
    test: Labels,
    declared: Mapping[str, ColumnSettings],
    reader: TableReader,
    scale: Scale | None = None,
) -> TableDataset:
    inputs = whole.only(names)
    return TableDataset(
        name=name,
        train=inputs.take(train),
        test=inputs.take(test),
        y_train=y[train],
        y_test=y[test],
        class_names=class_names,
        group_train=None if groups is None else groups[train],
        group_test=None if groups is None else groups[test],
        declared=declared,
        reader=reader,
        names=names,
        scale=scale,
    )


def files_of(path: str | tuple[str, ...], source: str, origin: str) -> list[Path]:
    """The files that a path means: itself, those of a folder in the order of their names, or those of a list."""
    if isinstance(path, tuple):
        files = [expanded(one, origin) for one in path]
    elif is_folder(place := expanded(path, origin)):
        endings = ENDINGS[source]
        files = sorted(one for one in place.iterdir() if one.suffix.lower() in endings and not one.name.startswith("."))
        if not files:
            raise UserError(f"{origin}: cannot be read: the folder holds no file that ends in {' or '.join(endings)}")
    else:
        return [place]
    stems = [file.stem for file in files]
    if repeated := [stem for stem in stems if stems.count(stem) > 1]:
        raise UserError(f"{origin}: two files are called {repeated[0]!r}, and each names a client; rename one")
    if not files:
        raise UserError("data.path = [] names no file")
    return files


def check_has(table: RawTable, names: Sequence[str], origin: str) -> None:
    if lacking := [name for name in names if name not in table.columns]:
        raise UserError(f"{origin} has no column {listing(lacking)}; its columns are: {listing(table.columns)}")


def _common(
    tables: Sequence[RawTable], outside: tuple[str, str], declared: Mapping[str, ColumnSettings]
) -> tuple[str, ...]:
    """Columns that may become features, which all files must have."""
    names = dict.fromkeys(name for table in tables for name in table.columns if name not in outside)
    wanted = [name for name, column in declared.items() if column.kind != "ignore"]
    for table in tables:
        for name in (*wanted, *names):
            if name not in table.columns:
                why = "data.columns declares it" if name in declared else "other files have it"
                raise UserError(
                    f"{table.places[0].origin} has no column {name!r}, but {why}; add it, or leave it out everywhere "
                    f"(data.columns.{name}.kind = 'ignore'); its columns are: {listing(table.columns)}"
                )
    if not names:
        raise UserError(f"{tables[0].places[0].origin} has no feature column beside {listing(tables[0].columns)}")
    return tuple(names)


def _labels(whole: RawTable, target: str) -> list[str]:
    texts: list[str] = []
    for place, text in zip(whole.places, whole.columns[target], strict=True):
        if text is None:
            raise missing_target(str(place), target, "")
        texts.append(text)
    return texts


def _groups(whole: RawTable, tables: Sequence[RawTable], files: Sequence[Path], client_column: str) -> Names:
    """The client of each record."""
    if not client_column:
        return np.array([file.stem for table, file in zip(tables, files, strict=True) for _ in table.places])
    names = whole.columns[client_column]
    for place, name in zip(whole.places, names, strict=True):
        if name is None:
            raise UserError(f"{place}: column {client_column!r} is empty; every record needs a client")
    return np.array(names, dtype=np.str_)


def _name(path: str | tuple[str, ...]) -> str:
    return Path(path).stem if isinstance(path, str) else Path(path[0]).resolve().parent.name or "tables"
