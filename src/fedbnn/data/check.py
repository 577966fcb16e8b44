"""What each client would hold, before anything runs: for the eyes of those who may see the records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedbnn.data.dataset import Floats
from fedbnn.data.dealing import federate
from fedbnn.data.federated import FederatedData
from fedbnn.data.identity import HALF, identify
from fedbnn.data.partition import PartitionSettings
from fedbnn.data.settings import DataSettings
from fedbnn.data.sources import load_dataset, raw_tables
from fedbnn.data.tables import identifying
from fedbnn.data.tables.coding import Coding
from fedbnn.data.tables.raw import Cells, RawTable
from fedbnn.data.targets import target_texts

LEFT_OUT = "left out"
NUMBER = "number"


@dataclass(frozen=True)
class Holding:
    """One client.

    Attributes:
        records: to train on.
        tested: records of its own to be scored on; None where all clients are scored on the same ones.
        classes: how many of its records are of each class; in regression there are none.
        missing: how many values are missing in each column.
        duplicates: records that hold the same values as an earlier one.
        public: records whose values are those of a record of the alignment set.

    """

    name: str
    records: int
    tested: int | None
    classes: Mapping[str, int]
    missing: Mapping[str, int]
    duplicates: int
    public: int


@dataclass(frozen=True)
class ColumnLooks:
    """A column over all clients; `looks` says why it may tell who a record is of, and is mostly empty."""

    name: str
    kind: str
    missing: int
    different: float
    looks: str


@dataclass(frozen=True)
class DataCheck:
    """What all clients hold, and what to look at before a run."""

    source: str
    alignment: int
    features: int
    clients: tuple[Holding, ...]
    columns: tuple[ColumnLooks, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_data(settings: DataSettings, partition: PartitionSettings, seed: int) -> DataCheck:
    """What a run with these settings would deal to whom."""
    data = federate(load_dataset(settings), settings, partition, seed)
    tables = None if settings.unseen_classes else raw_tables(settings)  # whose rows are then others
    cells = None if tables is None else tables.train
    public = contents(data.loaded_alignment)
    holdings = tuple(_holding(data, index, cells, public) for index in range(data.n_clients))
    columns = () if cells is None else columns_of(cells, data.coding)
    return DataCheck(
        data.dataset.name,
        data.alignment_points,
        int(np.prod(data.dataset.input_shape)),
        holdings,
        columns,
        (*data.told, *data.oddities, *remarks(holdings, columns)),
    )


def _holding(data: FederatedData, index: int, cells: RawTable | None, public: frozenset[bytes]) -> Holding:
    rows = data.client_indices[index]
    own = int(data.own_mask(index, "test").sum()) if data.natural else None
    labels = target_texts(data.dataset.y_train[rows], data.dataset.class_names)
    table = None if cells is None else cells.take(rows)
    return holding(
        data.client_names[index], data.dataset.x_train[rows], labels, data.dataset.class_names, table, public, own
    )


def holding(
    name: str,
    x: Floats,
    labels: Sequence[str],
    class_names: Sequence[str],
    cells: RawTable | None,
    public: frozenset[bytes],
    tested: int | None,
) -> Holding:
    """One client by its inputs, the names of their classes and, of a table, its cells."""
    counts = Counter(labels)
    hashes = [row.tobytes() for row in identify(x, labels)[:, :HALF]]
    return Holding(
        name=name,
        records=len(x),
        tested=tested,
        classes={one: counts[one] for one in class_names},
        missing={} if cells is None else {name: column.count(None) for name, column in cells.columns.items()},
        duplicates=len(hashes) - len(set(hashes)),
        public=sum(one in public for one in hashes),
    )


def contents(x: Floats) -> frozenset[bytes]:
    """Hashes of the values of records."""
    return frozenset(row.tobytes() for row in identify(x, [""] * len(x))[:, :HALF])


def columns_of(cells: RawTable, coding: Coding | None) -> tuple[ColumnLooks, ...]:
    """Each column with the kind that it is read as."""
    kinds = None if coding is None else {column.name: column.kind for column in coding.columns}
    return tuple(
        _looks(name, column, NUMBER if kinds is None else kinds.get(name, LEFT_OUT))
        for name, column in cells.columns.items()
    )


def _looks(name: str, column: Cells, kind: str) -> ColumnLooks:
    there = [cell for cell in column if cell is not None]
    different = identifying.distinct(column)
    looks = []
    if identifying.named(name):
        looks.append("its name looks as if it named people")
    # Measured numbers differ by nature; whole ones that never repeat, and texts, are names.
    if different == 1 and (kind != NUMBER or all(cell.lstrip("+-").isdecimal() for cell in there)):
        looks.append("no two records share a value")
    return ColumnLooks(name, kind, len(column) - len(there), different, " and ".join(looks))


def remarks(holdings: Sequence[Holding], columns: Sequence[ColumnLooks]) -> list[str]:
    """What to look at, in words."""
    found = [
        f"column {column.name!r}: {column.looks}; as {column.kind} it is learned from: declare kind = 'id' or 'ignore'"
        for column in columns
        if column.looks and column.kind not in ("id", LEFT_OUT)
    ]
    for one in holdings:
        if one.tested == 0:
            found.append(f"client {one.name!r} has no test records of its own: it takes part unscored")
        if one.duplicates:
            found.append(f"client {one.name!r}: {one.duplicates} record(s) hold the same values as an earlier one")
        if one.public:
            found.append(f"client {one.name!r}: {one.public} record(s) are in the public alignment set too")
        if lacking := [name for name, count in one.classes.items() if count == 1]:
            found.append(f"client {one.name!r}: one record only of class {', '.join(map(repr, lacking))}")
    return found
