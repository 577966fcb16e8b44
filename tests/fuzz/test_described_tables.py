"""Tables whose columns are described: whatever they hold, they are read, or refused in one line."""

from pathlib import Path

import pytest

from fedbnn.data import DataSettings, load_dataset
from tests.fuzz import corpus
from tests.fuzz.targets.data import TABLE, described
from tests.fuzz.targets.target import outcome
from tests.fuzz.test_files import CELLS, refused


@pytest.mark.parametrize(
    "cell", [*CELLS, '"', ";", '"a\nb"', "x" * 200_000, "1_0", "٣", "9999-99-99", "0000-00-00", "1e400"]
)
def test_cells(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "records.csv"
    for place in ("age", "sick", "1,5", "yes", "2020-02-03"):
        path.write_text(TABLE.replace(place, cell, 1), encoding="utf-8")
        outcome(lambda: described(path))


@pytest.mark.parametrize("name", corpus.PATHS)
def test_paths(name: str) -> None:
    for source in ("csv", "parquet", "folder"):
        given = DataSettings(source=source, path=corpus.PATHS[name], target="sick")
        refused(lambda given=given: load_dataset(given))  # type: ignore[misc]
        refused(lambda: load_dataset(DataSettings(source=source, path=(corpus.PATHS[name], "x"), target="sick")))  # noqa: B023
