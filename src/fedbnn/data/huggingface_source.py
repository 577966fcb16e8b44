"""Data sets of Hugging Face's `datasets`, as `save_to_disk` wrote them, or one .arrow or .parquet file.

Nothing is downloaded and no code of a data set is run: what is not on disk is refused. A column of images makes it a
data set of images; otherwise it is a table, as a Parquet file is. Classes keep the names that a ClassLabel gives them.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded, is_folder
from fedbnn.base.wording import did_you_mean, listing, one_line
from fedbnn.data.csv_source import tested
from fedbnn.data.dataset import Dataset, Labels, Names
from fedbnn.data.images import one_array, read_image
from fedbnn.data.stored import Array, Half, Stored, dataset_of
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.dataset import TableDataset, check_roles, tables_of_values
from fedbnn.data.tables.layout import Layout

HALVES: tuple[Half, ...] = ("train", "test")


@dataclass(frozen=True)
class _Split:
    """One split: its columns as Python's own values, the names of classes by column, and which columns are images."""

    columns: Mapping[str, Sequence[Any]]
    classes: Mapping[str, tuple[str, ...]]
    images: tuple[str, ...]

    def texts(self, column: str) -> list[Any]:
        """A column with the names of classes in the place of their numbers; None where there is none."""
        names = self.classes.get(column)
        values = self.columns[column]
        if names is None:
            return list(values)
        return [None if value is None or not 0 <= value < len(names) else names[value] for value in values]


def load_huggingface(
    path: str,
    target: str,
    client_column: str,
    test_fraction: float,
    declared: Mapping[str, ColumnSettings],
    layout: Layout,
) -> Dataset | TableDataset:
    """Images, or a table whose columns are not features yet; without splits train and test, a fixed share is tested."""
    origin = f"data.path = {path!r}"
    splits = _splits(expanded(path, origin), origin)
    first = splits[0]
    target = target or _only_class_label(first, origin)
    for field, name in (("target", target), ("client_column", client_column)):
        if name and any(name not in split.columns for split in splits):
            raise UserError(
                f"data.{field} = {name!r} is not a column of {origin}; its columns are: {listing(first.columns)}"
                f"{did_you_mean(name, first.columns)}"
            )
    name = Path(path).stem or "huggingface"
    if not first.images:
        values = [{column: split.texts(column) for column in split.columns} for split in splits]
        return tables_of_values(values, name, origin, target, client_column, test_fraction, declared, layout)
    if len(first.images) > 1:
        raise UserError(f"{origin} has several columns of images ({listing(first.images)}); keep one of them")
    if declared:
        raise UserError(f"data.columns is for tables, but {origin} has images ({first.images[0]}); leave it out")
    check_roles(target, client_column, declared)
    return dataset_of(_Images(origin, splits, target, client_column, test_fraction), name)


class _Images(Stored):
    def __init__(
        self, origin: str, splits: Sequence[_Split], target: str, client_column: str, test_fraction: float
    ) -> None:
        self.origin, self.path, self.halves = origin, Path(), HALVES
        column = splits[0].images[0]
        self._names = splits[0].classes.get(target, ())
        self._x = _pixels(origin, column, [value for split in splits for value in split.columns[column]])
        self._y = self._labels(target, splits)
        self._groups: Names | None = None
        if client_column:
            told = [text for split in splits for text in split.texts(client_column)]
            if None in told:
                raise UserError(f"{origin}: column {client_column!r} is empty in record {told.index(None)}")
            self._groups = np.array([str(text) for text in told], dtype=np.str_)
        rows: tuple[Labels, Labels]
        if len(splits) == 2:
            first = len(splits[0].columns[column])
            rows = np.arange(first), np.arange(first, len(self._y))
        else:
            labels = np.unique(self._y, return_inverse=True)[1].astype(np.int64)
            rows = tested(labels, self._groups, test_fraction, origin, repr(target))
        self._rows = dict(zip(HALVES, rows, strict=True))

    def _labels(self, target: str, splits: Sequence[_Split]) -> Array:
        values = [value for split in splits for value in split.columns[target]]
        known = [
            isinstance(value, int | str) and (not self._names or value in range(len(self._names))) for value in values
        ]
        if not all(known):
            at = known.index(False)
            raise UserError(
                f"{self.origin}: column {target!r} holds {values[at]!r} in record {at}; every record needs a class, a "
                "whole number or a text"
            )
        return np.array(values)

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        return {half: (self._x[self._rows[half]], self._y[self._rows[half]]) for half in halves}

    def names(self) -> tuple[str, ...]:
        return self._names

    def group(self, half: Half) -> Names | None:
        return None if self._groups is None else self._groups[self._rows[half]]


def _pixels(origin: str, column: str, values: Sequence[Any]) -> Array:
    called = [f"{column!r} of record {at}" for at in range(len(values))]
    images = []
    for name, value in zip(called, values, strict=True):
        held = value.get("bytes") if isinstance(value, dict) else None
        if not held:
            raise UserError(f"{origin}: {name} is no image that is in the file itself; save_to_disk puts them there")
        images.append(read_image(io.BytesIO(held), name, origin))
    return one_array(images, called, origin)


def _only_class_label(split: _Split, origin: str) -> str:
    if len(split.classes) != 1:
        raise UserError(
            f"data.target is empty, and {origin} has {len(split.classes)} columns of classes (ClassLabel); name one: "
            f"its columns are {listing(split.columns)}"
        )
    return next(iter(split.classes))


def _splits(path: Path, origin: str) -> list[_Split]:
    """Train and test, or the one split that there is."""
    package = _package(origin)
    if not path.exists():
        raise UserError(f"{origin}: there is no such file or folder")
    try:
        found = _read(package, path)
        named = {"": found} if isinstance(found, package.Dataset) else dict(found)
        tables = {name: _table(one) for name, one in named.items()}
    except UserError as error:
        raise UserError(f"{origin}: {error}") from None
    except Exception as error:  # Arrow and its readers fail in many ways where a file is made up
        raise UserError(f"{origin}: cannot be read: {one_line(str(error) or type(error).__name__, 300)}") from None
    if len(tables) == 1:
        splits = list(tables.values())
    elif set(HALVES) <= tables.keys():
        splits = [tables[half] for half in HALVES]
    else:
        raise UserError(f"{origin} has splits {listing(tables)}; train and test are needed, or one alone")
    for split in splits:
        if not len(next(iter(split.columns.values()), ())):
            raise UserError(f"{origin} has a split without records")
        if (split.classes, split.images) != (splits[0].classes, splits[0].images):
            raise UserError(f"{origin}: its splits differ in their columns or in the names of classes")
    return splits


def _read(package: Any, path: Path) -> Any:
    if is_folder(path):
        for file in sorted(path.rglob("*.arrow")):
            _stream(file)
        return package.load_from_disk(str(path), keep_in_memory=True)
    if path.suffix == ".arrow":
        return package.Dataset(package.table.InMemoryTable(_stream(path)))
    if path.suffix != ".parquet":
        raise UserError("a folder that save_to_disk wrote, or a file that ends in .arrow or .parquet, is needed")
    from pyarrow import parquet  # noqa: PLC0415 (datasets needs it too)

    with path.open("rb") as stream:
        return package.Dataset(package.table.InMemoryTable(parquet.ParquetFile(stream).read()))


def _stream(path: Path) -> Any:
    """The table of an .arrow file; one whose offsets point nowhere would end the process where it is used."""
    from pyarrow import ipc  # noqa: PLC0415 (datasets needs it too)

    with path.open("rb") as stream:
        table = ipc.open_stream(stream).read_all()
    table.validate(full=True)
    return table


def _table(dataset: Any) -> _Split:
    """Cells as they are stored: nothing is decoded, so that no path or address in them is followed."""
    features = dict(dataset.features)
    table = dataset.with_format("arrow")[:]
    table.validate(full=True)
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    return _Split(
        {name: table.column(name).to_pylist() for name in table.column_names},
        {name: tuple(map(str, features[name].names)) for name, kind in kinds.items() if kind == "ClassLabel"},
        tuple(name for name, kind in kinds.items() if kind == "Image"),
    )


def _package(origin: str) -> Any:
    # Read when it is imported: whatever a file names, nothing is asked of the network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        import datasets  # noqa: PLC0415 (an extra)
        import datasets.table  # noqa: PLC0415
    except ImportError as error:
        raise UserError(f"{origin}: this source needs pip install 'fedbnn[huggingface]' ({error})") from None
    return datasets
