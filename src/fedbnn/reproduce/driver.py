"""Runs the cells of some studies, one after the other, and writes tables and figures anew after each of them.

A finished cell is never run again, and one that was stopped goes on where it was. A cell that fails is told of, and the
others go on.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbnn.base.devices import find_device
from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean
from fedbnn.federation.engines import ClientFailure, Engine
from fedbnn.reproduce.cells import Cell, Entry, expand
from fedbnn.reproduce.plan import Plan, columns, row_names
from fedbnn.reproduce.write import known_runs, make_folder, write_page, write_study
from fedbnn.runs import experiment
from fedbnn.runs.config import Config, EngineSettings
from fedbnn.runs.observer import Observer

ALL = "all"


@dataclass(frozen=True)
class Selection:
    """Which cells to run; an empty list means all of them.

    `rows` may name methods too, which stand for all their rows; a name that is both stands for the row alone.
    """

    rows: Sequence[str] = ()
    data: Sequence[str] = ()
    sizes: Sequence[str] = ()
    seeds: Sequence[int] = ()

    def takes(self, cell: Cell) -> bool:
        rows, data, sizes, seeds = self.rows, self.data, self.sizes, self.seeds
        return (
            (not rows or cell.row in rows)
            and (not data or cell.data in data)
            and (not sizes or cell.size in sizes)
            and (not seeds or cell.config.seed in seeds)
        )


@dataclass(frozen=True)
class Work:
    """Some studies of a plan, every configuration parsed."""

    plan: Plan
    entries: dict[str, list[Entry]]
    cells: list[Cell]  # to be run, each once, the most telling first
    changes: Sequence[str] = ()

    def lacking(self, out: Path) -> "Work":
        """The same, of whose cells only those are left that the results do not have, or not with all that is scored."""
        lacking: set[Path] = set()
        for name, entries in self.entries.items():
            known = known_runs(out, self.plan, name)
            cells = [cell for entry in entries for cell in entry.cells]
            lacking |= {cell.folder for cell in cells if not _whole(known.get(cell.folder.name), cell)}
        return replace(self, cells=[cell for cell in self.cells if cell.folder in lacking])

    def write(self, out: Path) -> Path:
        """Tables, figures and pages of what is finished."""
        for name, entries in self.entries.items():
            write_study(out, self.plan, name, entries, self.changes)
        return write_page(out, self.plan)


def _whole(run: Mapping[str, Any] | None, cell: Cell) -> bool:
    """Whether results have a run with all its models: earlier versions asked no global one with own class shares."""
    if run is None:
        return False
    scored = run["variants"]
    return cell.config.data.regression or "global" not in scored or "global_own_prior" in scored


def choose(plan: Plan, names: Sequence[str]) -> list[str]:
    """Studies by name, in the plan's order; `all` is every one."""
    known = list(plan.contents.studies)
    for name in names:
        _check("study", name, [*known, ALL])
    return [name for name in known if ALL in names or name in names]


def prepare(
    plan: Plan, studies: Sequence[str], runs: Path, selection: Selection | None = None, changes: Sequence[str] = ()
) -> Work:
    """Expand the studies into cells, those that the selection takes in order of priority.

    First every row of every study with its first seed, then the second seeds, and so on: work that is stopped early
    has a number for every method.
    """
    selection = selection or Selection()
    _check_selection(plan, studies, selection)
    rows = plan.contents.rows
    meant = [
        one for name in selection.rows for one in rows if one == name or (name not in rows and rows[one].method == name)
    ]
    selection = replace(selection, rows=meant)
    entries = {name: expand(plan, name, runs, changes) for name in studies}
    ordered = sorted(
        (
            (turn, at, number, cell)
            for at, of in enumerate(entries.values())
            for number, entry in enumerate(_by_column(of))
            for turn, cell in enumerate(entry.cells)
            if selection.takes(cell)
        ),
        key=lambda one: one[:3],
    )
    once = {cell.folder: cell for *_, cell in reversed(ordered)}
    cells = [cell for *_, cell in ordered if once[cell.folder] is cell]
    return Work(plan, entries, cells, changes)


def _by_column(entries: Sequence[Entry]) -> list[Entry]:
    """All rows of the first column or point before those of the next."""
    return sorted(entries, key=lambda entry: entry.place.get("column", 0))


def check(cells: Sequence[Cell], advice: str = "--datasets, --methods and --sizes leave cells out") -> None:
    """Look for the device of every unfinished cell, deal its data, once for each federation, and ask its method.

    Raises:
        UserError: a device is not here, data is missing or too small, or a method refuses the federation.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.result() is None:
            groups.setdefault(_federation(cell.config), []).append(cell)
            _check_device(cell)
    for first, *others in groups.values():
        try:
            prepared = experiment.Prepared.of(first.config, [])
            for cell in (first, *others):
                prepared.check(cell.config.chosen())
        except UserError as error:
            raise UserError(f"{first.title}: {error} (nothing was run; {advice})") from None


def _check_device(cell: Cell) -> None:
    try:
        find_device(cell.config.engine.device)
    except UserError as error:
        raise UserError(
            f"{cell.title}: {error} (nothing was run; `--set engine.device=cpu` runs all of it there)"
        ) from None


def _federation(config: Config) -> str:
    """Everything but the method and the seed."""
    found = replace(config, seed=0).to_json()
    del found["method"], found["methods"]
    return json.dumps(found, sort_keys=True)


@dataclass
class Clock:
    """How long cells take, learned from those that are finished."""

    seconds: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def learn(self, cell: Cell, seconds: float) -> None:
        for key in self._keys(cell):
            self.seconds.setdefault(key, []).append(seconds)

    def estimate(self, cell: Cell) -> float | None:
        """Mean of the cells most like this one: same data, size and method; same data and method; any."""
        for key in self._keys(cell):
            if known := self.seconds.get(key):
                return sum(known) / len(known)
        return None

    def left(self, cells: Sequence[Cell]) -> float | None:
        estimates = [self.estimate(cell) for cell in cells]
        known = [one for one in estimates if one is not None]
        return sum(known) if len(known) == len(estimates) else None

    @staticmethod
    def _keys(cell: Cell) -> list[tuple[str, ...]]:
        return [(cell.data, cell.config.method, cell.size), (cell.data, cell.config.method), ()]


class Watcher(Observer):
    """Hears of cells as well as of what goes on inside them. This one says nothing."""

    def work_started(self, cells: int, done: int) -> None:
        """So many cells in all, so many of them finished already."""

    def cell_started(self, cell: Cell, left: float | None) -> None:
        """A cell begins; about so many seconds are left for all, if that can be told."""

    def cell_finished(self, cell: Cell, problem: str = "") -> None:
        """A cell is done, or has failed with this problem."""


def run(work: Work, out: Path, watcher: Watcher | None = None) -> list[str]:
    """Run what is not finished; the problems of failed cells."""
    watcher = watcher or Watcher()
    check(work.cells)
    make_folder(out)
    with Runner(watcher) as runner:
        waiting = [cell for cell in work.cells if not runner.knows(cell)]
        work.write(out)
        watcher.work_started(len(work.cells), len(work.cells) - len(waiting))
        for at, cell in enumerate(waiting):
            problem = runner.run(cell, waiting[at:])
            work.write(out)
            watcher.cell_finished(cell, problem)
        return runner.problems


class Runner:
    """Runs one cell after the other, keeps the engine between them, and learns how long they take."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.clock = Clock()
        self.problems: list[str] = []
        self._engines = _Engines()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *error: object) -> None:
        self._engines.close()

    def knows(self, cell: Cell) -> bool:
        """Whether the cell is finished; if so, the time it took is learned from."""
        if (result := cell.result()) is None:
            return False
        self.clock.learn(cell, result["seconds"])
        return True

    def run(self, cell: Cell, waiting: Sequence[Cell]) -> str:
        """Run an unfinished cell, the first of those that wait; its problem where it fails."""
        self.watcher.cell_started(cell, self.clock.left(waiting))
        try:
            engine = self._engines.of(cell.config.engine)
            result = experiment.run(cell.config, cell.folder, resume=True, observer=self.watcher, engine=engine)
        except (UserError, ClientFailure) as error:
            self._engines.close()  # a worker may be gone
            self.problems.append(f"{cell.title}: {error}")
            return self.problems[-1]
        self.clock.learn(cell, result["seconds"])
        _forget_states(cell.folder)
        return ""


def _forget_states(folder: Path) -> None:
    """The checkpoints of a finished run: those of hundreds would fill a disk, and nothing reads them."""
    for checkpoint in (folder / "checkpoint").glob("round-*"):
        shutil.rmtree(checkpoint)


class _Engines:
    """One engine at a time, kept for as long as cells want the same one."""

    def __init__(self) -> None:
        self.settings: EngineSettings | None = None
        self.engine: Engine | None = None

    def of(self, settings: EngineSettings) -> Engine:
        if self.engine is None or self.settings is None or asdict(self.settings) != asdict(settings):
            self.close()
            self.engine, self.settings = experiment.make_engine(settings), settings
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine = None


def _check_selection(plan: Plan, studies: Sequence[str], selection: Selection) -> None:
    found = [plan.contents.studies[name] for name in studies]
    rows = list(dict.fromkeys(row for study in found for row in row_names(study)))
    methods = [plan.contents.rows[row].method for row in rows]
    places = [column for study in found for column in columns(study)]
    seeds = {seed for column in places for seed in column.seeds or plan.contents.seeds}
    for option, wanted, known in (
        ("--methods", selection.rows, [*rows, *methods]),
        ("--datasets", selection.data, [column.data for column in places]),
        ("--sizes", selection.sizes, [column.size for column in places if column.size]),
        ("--seeds", [str(seed) for seed in selection.seeds], [str(seed) for seed in sorted(seeds)]),
    ):
        for name in wanted:
            _check(option, name, list(dict.fromkeys(known)))


def _check(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UserError(f"{what} {name!r} is not in the plan{did_you_mean(name, known)} (there are {', '.join(known)})")
