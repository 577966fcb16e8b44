"""The runs below a folder: which there are, what tells them apart, and which old ones can go."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.base.files import read_json
from fedbnn.federation.evaluation import ALL_SCORES, SCORES
from fedbnn.report.load import runs_of
from fedbnn.runs.config import as_of_today
from fedbnn.runs.standing import Standing, standing

MARKS = ("config.json", "partition.json")
DEEPEST = 6  # folders below the one that is looked through


def is_run(folder: Path) -> bool:
    """Whether this is a run folder: made whole, so both files are there from its first moment."""
    return not folder.is_symlink() and all((folder / name).is_file() for name in MARKS)


def find_runs(folder: Path) -> list[Path]:
    """Run folders at or below this one, by their paths; links are not followed."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: give one that has runs below it")
    return list(_below(folder, DEEPEST))


def _below(folder: Path, deeper: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
        return
    try:
        inside = sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return  # not ours to read
    for one in inside if deeper else ():
        yield from _below(one, deeper - 1)


def changed_at(folder: Path) -> float:
    """When something was last written to a run, in seconds since 1970."""
    names = ("result.json", "metrics.jsonl", "failure.json", "config.json")
    return max((folder / name).stat().st_mtime for name in names if (folder / name).exists())


def size_of(folder: Path) -> int:
    """Bytes of all files of a run."""
    return sum(
        (Path(place) / name).lstat().st_size for place, _, names in os.walk(folder) for name in names
    )  # walk follows no links


@dataclass(frozen=True)
class Comparison:
    """Runs side by side: their settings as far as they differ, and what each scored last."""

    runs: tuple[Standing, ...]
    settings: dict[str, list[Any]]  # dotted key: a value for each run; None where a run has no such setting

    @property
    def scores(self) -> dict[str, list[float | None]]:
        """Those of the task that any of the runs is of; None where a run has none."""
        told = [run.scores for run in self.runs]
        names = [name for name in ALL_SCORES if any(name in one for one in told)] or list(SCORES)
        return {name: [one.get(name) for one in told] for name in names}


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Any runs, finished or not; a comparison's folder stands for its runs."""
    every: list[Path] = []
    for folder in folders:
        every += runs_of(folder) if (folder / "comparison.json").is_file() else [folder]
    for folder in every:
        if not is_run(folder):
            raise UserError(f"{folder} is no run folder (it lacks {' or '.join(MARKS)})")
    if len({folder.resolve() for folder in every}) < max(2, len(every)):
        raise UserError("give at least two runs to compare, and each only once")
    flat = [dict(flattened(as_of_today(read_json(folder / "config.json")))) for folder in every]
    keys = dict.fromkeys(key for one in flat for key in one)
    columns = {key: [one.get(key) for one in flat] for key in keys}
    differ = {key: values for key, values in columns.items() if any(value != values[0] for value in values)}
    return Comparison(tuple(standing(folder) for folder in every), differ)


def flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted keys."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flattened(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
