"""What is searched: a TOML file, or any configuration with the spaces that come with fedbnn.

A search says where candidates are tried (`config`, a file beside it or a preset; or a `column` of a `scale`, whose rows
are then searched), on which seeds, and what is tried of each method: candidates as they are listed, or a space to draw
from, whose first candidate is always the defaults. Overrides come in this order: what the plan says, `set`, the command
line, the method's `set`, the candidate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from fedbnn.base.errors import UserError
from fedbnn.base.settings import fields_of, read_tables
from fedbnn.base.wording import did_you_mean
from fedbnn.federation.evaluation import task_scores
from fedbnn.methods.registry import find_method
from fedbnn.reproduce.cells import Cell, cell
from fedbnn.reproduce.plan import Change, Column, Contents, Plan, Row, find, load, read
from fedbnn.reproduce.tuning.space import Knob, shipped
from fedbnn.runs.config import Config, load_config, preset, toml_value

DEFAULT = "digits"  # the name of a search on the default configuration
Settings = dict[str, Any]


class Tried(Change):
    """What is tried of one method, or of one row of a scale; keys without a table are the method's own settings."""

    aim: list[str] = Field(default=[])  # empty: the search's
    candidates: list[Settings] = Field(default=[])  # as they are listed; {} is the defaults
    space: dict[str, Knob] = Field(default={})  # empty: the one that comes with fedbnn

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.candidates and self.space:
            raise ValueError("give either candidates or a space")
        for at, (name, knob) in enumerate(self.space.items()):
            if knob.over and knob.over not in list(self.space)[:at]:
                raise ValueError(f"space.{name}.over = '{knob.over}' is no setting before it")
        return self


class Search(Change):
    """A file for `fedbnn tune`."""

    title: str
    seeds: list[int] = Field(min_length=1)
    config: str = ""
    scale: str = ""
    column: Column = Column(data="")
    trials: int = Field(default=10, ge=1)  # candidates of each method, the defaults among them
    aim: list[str] = Field(default=["nll"], min_length=1)  # by importance; "a + b" is the sum of two scores
    search: dict[str, Tried] = Field(min_length=1)


@dataclass(frozen=True)
class Tuning:
    """A search on its ground."""

    name: str
    where: str
    contents: Search
    plan: Plan
    column: Column
    changes: Sequence[str]

    @cached_property
    def regression(self) -> bool:
        return load_config(self.plan.data[self.column.data], [*self.contents.set, *self.changes]).data.regression

    def method(self, row: str) -> str:
        return find_method(self.plan.contents.rows[row].method).name

    def tried(self, row: str) -> Tried:
        """What is tried of a row, with what the search and the package say where the row says nothing."""
        own = self.contents.search[row]
        space = {} if own.candidates else own.space or shipped(self.method(row))
        if not (own.candidates or space):
            raise UserError(f"{self.where}: there is no space for '{row}': write one under [search.{row}.space]")
        return own.model_copy(update={"space": space, "aim": own.aim or self.contents.aim})

    def overrides(self, row: str, candidate: Settings) -> list[str]:
        """What a candidate changes in its row."""
        tables, own = fields_of(Config), f"methods.{self.method(row)}."
        chosen = [
            f"{'' if key.partition('.')[0] in tables else own}{key}={toml_value(value)}"
            for key, value in candidate.items()
        ]
        return [*self.contents.set, *self.changes, *self.contents.search[row].set, *chosen]

    def cells(self, row: str, number: int, candidate: Settings, runs: Path) -> list[Cell]:
        """The runs of one candidate, one a seed, scored on validation records."""
        where = f"{self.where}: candidate {number}"
        overrides = ['evaluation.split="validation"', *self.overrides(row, candidate)]
        found = [cell(self.plan, runs, self.column, row, seed, overrides, where) for seed in self.contents.seeds]
        if found[0].config.evaluation.split != "validation":
            raise UserError(f"{where}: evaluation.split = 'test': settings are searched on validation records only")
        if found[0].config.data.validation == 0:
            raise UserError(
                f"{self.where}: data.validation = 0: settings are searched on validation records, never on test "
                "records; set data.validation to the number of records to hold out for it"
            )
        return [replace(one, place=f"candidate {number}") for one in found]


def load_search(path: Path | None, methods: Sequence[str] = (), changes: Sequence[str] = (), **given: Any) -> Tuning:
    """A search, or a configuration or preset (or the defaults) to search for; what is given goes before the file's."""
    where, name = str(path or "the default configuration"), path.stem if path else DEFAULT
    base = path
    if path is not None and _is_search(path):
        contents = read(path, Search)
        base = _configuration(path, contents.config)
        for one in methods:
            _check("--methods", one, contents.search)
    else:
        config = load_config(path, changes)
        last = f"evaluation.every={config.rounds}"  # earlier rounds are not judged
        wanted = {one: Tried() for one in methods or [config.method]}
        contents = Search(title=f"Settings for {where}", seeds=[config.seed], set=[last], search=wanted)
    chosen = {one: contents.search[one] for one in methods or contents.search}
    contents = contents.model_copy(update={"search": chosen, **{key: value for key, value in given.items() if value}})
    if contents.scale:
        plan, column = load(find(contents.scale)), contents.column
        _check(f"{where}: column.data", column.data, plan.data)
        _check(f"{where}: column.size", column.size, ["", *plan.contents.sizes])
        for row in chosen:
            _check(f"{where}: search", row, plan.contents.rows)
    else:
        for one in chosen:
            find_method(one)
        rows = {one: Row(title=one, method=one) for one in chosen}
        ground = Contents.model_construct(title=name, seeds=contents.seeds, sizes={}, rows=rows, studies={})
        plan, column = Plan(Path(), ground, {name: base}), Column(data=name)
    tuning = Tuning(name, where, contents, plan, column, changes)
    for score in (score for row in chosen for aim in tuning.tried(row).aim for score in scores_of(aim)):
        _check(f"{where}: aim", score, task_scores(regression=tuning.regression))
    return tuning


def scores_of(aim: str) -> list[str]:
    """The scores whose sum is one aim."""
    return [name.strip() for name in aim.split("+")]


def _is_search(path: Path) -> bool:
    """A search has `seeds`, a configuration `seed`; what cannot be read is told of by whoever reads it."""
    try:
        return "seeds" in read_tables(path)
    except UserError:
        return False


def _configuration(search: Path, name: str) -> Path | None:
    """The file of a search's `config`: beside it, or a preset; None for the defaults."""
    if Path(name).name != name:
        raise UserError(f"{search}: config = '{name}': write the name of a file beside this one, or of a preset")
    beside = search.parent / name
    return None if not name else beside if beside.is_file() else preset(Path(name)) or beside


def _check(field: str, name: str, known: Sequence[str] | dict[str, Any] | Any) -> None:
    if name not in known:
        raise UserError(f"{field} = '{name}': unknown{did_you_mean(name, known)} (there are {', '.join(known)})")
