"""A cell: one run of the plan, with its whole configuration and the folder that holds it.

The folder's name ends in a hash of every setting that is not at its default. So equal configurations of different
studies are one run, and a setting that a later version adds does not make finished runs unknown. A finished run is
taken only if its own config.json agrees.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.federation.evaluation import SOMETIMES, task_scores
from fedbnn.reproduce.plan import PLAN, Column, Cost, Curve, Plan, Reliability, Row, Table
from fedbnn.runs.config import Config, as_of_today, load_config
from fedbnn.runs.folder import differences, read_json


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    size: str
    row: str
    config: Config
    folder: Path
    place: str = ""  # which column or point of its study, where row, data and size do not tell

    @property
    def title(self) -> str:
        where = " ".join(part for part in (self.data, self.size, f"({self.place})" if self.place else "") if part)
        return f"{self.row} on {where}, seed {self.config.seed}"

    @property
    def started(self) -> bool:
        return (self.folder / "config.json").exists()

    def result(self) -> dict[str, Any] | None:
        """What the run found, or None while it is not finished."""
        if not (self.folder / "result.json").exists():
            return None
        before = as_of_today(read_json(self.folder / "config.json"))
        if changed := differences(before, self.config.to_json()):
            raise UserError(
                f"{self.folder} holds a run with another configuration ({changed}): a default has changed; delete it "
                "to run it again"
            )
        found: dict[str, Any] = read_json(self.folder / "result.json")
        return found


@dataclass(frozen=True)
class Entry:
    """One row at one place of a study, over its seeds."""

    place: Mapping[str, Any]  # where it belongs: its column, its line and x, or its panel
    row: str
    column: Column
    cells: Sequence[Cell]


def expand(plan: Plan, study: str, runs: Path, changes: Sequence[str] = ()) -> list[Entry]:
    """Every cell of a study, by its place; raises a UserError for the first configuration that does not parse."""
    found = plan.contents.studies[study]
    entries, where = [], f"{plan.folder / PLAN}: studies.{study}"
    for place, row, column, more in _places(plan, study):
        overrides = [*found.set, *column.set, *more, *changes]
        point = "" if place.get("x") is None else f"{study} at {place['x']:g}"
        seeds = column.seeds or plan.contents.seeds
        once = isinstance(found, Table) and row in found.one_seed
        cells = [
            replace(cell(plan, runs, column, row, seed, overrides, where), place=column.title or point)
            for seed in (seeds[:1] if once else seeds)
        ]
        _check_scores(found, cells[0], where)
        entries.append(Entry(place, row, column, cells))
    return entries


def _check_scores(study: Table | Curve | Reliability | Cost, cell: Cell, where: str) -> None:
    """Raise a UserError where a study shows what runs on these data do not have."""
    regression = cell.config.data.regression
    task = f"on {cell.data}, where data.task = '{cell.config.data.task}'"
    if isinstance(study, Reliability) and regression:
        raise UserError(f"{where}: a study of kind 'reliability' is of classes, and cannot be {task}")
    known = (*task_scores(regression=regression), *SOMETIMES)
    for score in study.scores if isinstance(study, Table | Curve) else ():
        if score not in known:
            raise UserError(f"{where}.scores: there is no '{score}' {task} (there are {', '.join(known)})")


def _places(plan: Plan, study: str) -> Iterator[tuple[dict[str, Any], str, Column, list[str]]]:
    match plan.contents.studies[study]:
        case Table(rows=rows, columns=columns):
            for row in rows:
                yield from (({"column": at}, row, column, []) for at, column in enumerate(columns))
        case Cost(rows=rows, column=column):
            yield from (({}, row, column, []) for row in rows)
        case Reliability(panels=panels):
            yield from (({"panel": at}, panel.row, panel, []) for at, panel in enumerate(panels))
        case Curve(lines=lines, columns=columns):
            for number, column in enumerate(columns):
                for at, line in enumerate(lines):
                    place = {"column": number, "line": at}
                    for point in line.points:
                        there = [f"{line.setting}={point.x}"] if line.setting else []
                        yield place | {"x": point.x}, line.row, column, [*line.set, *there, *point.set]
                    if not line.points:
                        yield place | {"x": None}, line.row, column, line.set


def cell(
    plan: Plan, runs: Path, column: Column, row_name: str, seed: int, overrides: Sequence[str], where: str
) -> Cell:
    """The run of one row on one federation with one seed."""
    row: Row = plan.contents.rows[row_name]
    everything = [*planned(plan, column, row_name), *overrides, f'method="{row.method}"', f"seed={seed}"]
    try:
        config = load_config(plan.data[column.data], everything)
    except UserError as error:
        raise UserError(f"{where}, row {row_name} on {column.data}: {error}") from None
    name = f"{column.data}-{config.method_name}-seed{seed}-{identity(config)}"
    return Cell(column.data, column.size, row_name, config, runs / name)


def planned(plan: Plan, column: Column, row: str) -> list[str]:
    """What the plan changes in the configuration of a column's data: by size, then by row."""
    size = plan.contents.sizes[column.size].changes(column.data) if column.size else []
    return [*size, *plan.contents.rows[row].changes(column.data)]


def identity(config: Config) -> str:
    """Eight hexadecimal digits that differ between configurations of different results."""
    plain = Config().with_method(config.method).to_json()
    stated = config.to_json()
    # What models had once is always written, and what they have since only where it is not at its default.
    stated["models"] = [
        {"name": model.name, "share": model.share, "options": model.options, **model.unusual} for model in config.models
    ]
    plain["models"] = [{"name": model.name, "share": 1.0, "options": {}} for model in Config().models]
    text = json.dumps({"method": config.method, **_beyond(stated, plain)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _beyond(value: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """What of a nested object differs from its default."""
    result: dict[str, Any] = {}
    for key, inner in value.items():
        usual = default.get(key)
        if isinstance(inner, Mapping) and isinstance(usual, Mapping):
            if nested := _beyond(inner, usual):
                result[key] = nested
        elif key not in default or inner != usual:
            result[key] = inner
    return result
