"""Tables whose columns are described: whatever they hold, they are read, or refused in one line."""

import io
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.tables.coding import Coding, ColumnCode
from fedbnn.data.tables.columns import ColumnSettings
from tests.fuzz import corpus
from tests.fuzz.test_files import CELLS, little_memory, outcome, refused

TABLE = "age;day;sick\n" + "1,5;2020-02-03;yes\n2;;no\n3;01.02.2020;yes\n4;NA;no\n" * 4
COLUMNS = {
    "age": ColumnSettings("number", low=0, high=9),
    "day": ColumnSettings("date", low=2000, high=2030),
}


def read(path: Path, source: str = "csv") -> None:
    given = DataSettings(source=source, path=str(path), target="sick", columns=COLUMNS, decimal=",", alignment=4)
    data = federate(load_dataset(given), given, PartitionSettings(kind="iid", clients=2), 0)
    assert data.coding is not None


@pytest.mark.parametrize(
    "cell", [*CELLS, '"', ";", '"a\nb"', "x" * 200_000, "1_0", "٣", "9999-99-99", "0000-00-00", "1e400"]
)
def test_cells(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "records.csv"
    for place in ("age", "sick", "1,5", "yes", "2020-02-03"):
        path.write_text(TABLE.replace(place, cell, 1), encoding="utf-8")
        outcome(lambda: read(path))


def test_changed_tables(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    for data in corpus.flips(TABLE.encode(), 200):
        path.write_bytes(data)
        outcome(lambda: read(path))


def test_changed_parquet(tmp_path: Path) -> None:
    stream = io.BytesIO()
    table = {"age": [1.5, 2.0, None, 4.0] * 4, "day": ["2020-02-03", None] * 8, "sick": ["yes", "no"] * 8}
    parquet.write_table(pa.table(table), stream)
    path = tmp_path / "records.parquet"
    path.write_bytes(stream.getvalue())
    assert not outcome(lambda: read(path, "parquet"))
    for data in corpus.flips(stream.getvalue(), 200):
        path.write_bytes(data)
        with little_memory(2**30):
            outcome(lambda: read(path, "parquet"))


@pytest.mark.parametrize("name", corpus.PATHS)
def test_paths(name: str) -> None:
    for source in ("csv", "parquet", "folder"):
        given = DataSettings(source=source, path=corpus.PATHS[name], target="sick")
        refused(lambda given=given: load_dataset(given))  # type: ignore[misc]
        refused(lambda: load_dataset(DataSettings(source=source, path=(corpus.PATHS[name], "x"), target="sick")))  # noqa: B023


def test_changed_codings() -> None:
    good = Coding((ColumnCode("a", "number"), ColumnCode("b", "category", values=("x", "y")), ColumnCode("c", "date")))
    for data in corpus.flips(good.to_json().encode(), 300):
        outcome(lambda data=data: Coding.from_json(data, "it"))  # type: ignore[misc]
