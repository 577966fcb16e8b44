"""What is run to reproduce the paper: a folder of ordinary configurations and one plan.toml, and nothing in code.

A plan names rows (a method with its overrides), sizes of data, seeds, and studies: which rows on which data. Every
override is a `dotted.key=value`, as `fedbnn run --set` takes it. Later ones win: configuration file, size, row, study,
column or point, command line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbnn.base.errors import UserError
from fedbnn.base.settings import as_json, read_tables
from fedbnn.base.wording import did_you_mean
from fedbnn.federation.evaluation import ALL_SCORES, SOMETIMES
from fedbnn.methods import METHODS
from fedbnn.methods.registry import installed
from fedbnn.reproduce.published import TABLE1
from fedbnn.runs.config import PRESETS, presets

PLAN = "plan.toml"
SHIPPED = Path(__file__).parent / "scales"
SOURCE = Path(__file__).resolve().parents[3] / "experiments"


class Part(BaseModel):
    """A table of the plan."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


AnyPart = TypeVar("AnyPart", bound=Part)


class Change(Part):
    """Overrides, and more of them on single data sets."""

    set: list[str] = []


class ByData(Change):
    """Overrides for all data sets, and after them those for one."""

    on: dict[str, Change] = {}

    def changes(self, data: str) -> list[str]:
        return [*self.set, *(self.on[data].set if data in self.on else [])]


class Row(ByData):
    """A method with its settings: one row, or a row for each of its scored models."""

    title: str
    method: str
    published: str = ""  # its row of the paper's Table 1


class Column(Change):
    """One federation: a data set at a size, perhaps with overrides of its own."""

    data: str
    size: str = ""
    title: str = ""
    seeds: list[int] = []  # empty: the plan's


class Study(Change):
    """What all kinds of study have."""

    title: str
    reading: str = ""  # how to read it, on the page


class Table(Study):
    """Rows against columns, a table a score; with one column, the scores side by side."""

    kind: Literal["table"]
    rows: list[str] = Field(min_length=1)
    one_seed: list[str] = []  # of these rows, those that have the first seed of a column only
    columns: list[Column] = Field(min_length=1)
    scores: list[str] = Field(default=["own_class_accuracy"], min_length=1)
    published: bool = False  # whether the paper's Table 1 has these columns
    cost: bool = False  # whether to say what a client sends in a round and how long a run takes, too


class Point(Change):
    """One place on the x axis."""

    x: float
    label: str = ""  # what the axis says there; empty: the number


class Line(Change):
    """A row over several points, or one value that holds everywhere."""

    row: str
    title: str = ""
    setting: str = ""  # the field that x is written into, before a point's own overrides
    points: list[Point] = []
    models: list[str] = []  # only clients with these models; empty: all clients
    scored: str = ""  # which of the row's scored models; empty: its headline

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if self.models and self.scored:
            raise ValueError("'models' is known of the headline model only: leave 'scored' out")
        return self


class Curve(Study):
    """Scores against a setting: a panel for each column and score, with the same lines."""

    kind: Literal["curve"]
    columns: list[Column] = Field(min_length=1)
    x: str
    percent: bool = False  # whether x is a share
    even: bool = False  # whether points stand evenly apart, whatever their distance
    scores: list[str] = Field(default=["own_class_accuracy"], min_length=1)
    lines: list[Line] = Field(min_length=1)


class Panel(Column):
    """One reliability diagram."""

    row: str


class Reliability(Study):
    """Reliability diagrams with ECE and MCE, the predictions of all clients and seeds pooled."""

    kind: Literal["reliability"]
    panels: list[Panel] = Field(min_length=1)


class Cost(Study):
    """What rows send, receive and take."""

    kind: Literal["cost"]
    rows: list[str] = Field(min_length=1)
    column: Column


AnyStudy = Annotated[Table | Curve | Reliability | Cost, Field(discriminator="kind")]


class Contents(Part):
    """A plan.toml."""

    title: str
    about: list[str] = []  # what differs from the paper, a sentence each
    seeds: list[int] = Field(min_length=1)
    sizes: dict[str, ByData] = {}
    rows: dict[str, Row] = Field(min_length=1)
    studies: dict[str, AnyStudy] = Field(min_length=1)


@dataclass(frozen=True)
class Plan:
    """A validated plan and the configurations beside it; the presets are known to every plan."""

    folder: Path
    contents: Contents
    data: Mapping[str, Path | None]  # None: the defaults

    @property
    def name(self) -> str:
        return self.folder.name


def scales() -> list[str]:
    """The plans that come with fedbnn."""
    return sorted({path.parent.name for base in (SHIPPED, SOURCE) for path in base.glob(f"*/{PLAN}")})


def find(scale: str) -> Path:
    """The folder of a scale: one of ours by name, or the user's own by path."""
    for folder in (SHIPPED / scale, SOURCE / scale, Path(scale)):
        if (folder / PLAN).is_file():
            return folder.resolve()
    raise UserError(
        f"--scale {scale}: there is no such scale{did_you_mean(scale, scales())} "
        f"(there are {', '.join(scales())}, or your own folder with a {PLAN})"
    )


def load(folder: Path) -> Plan:
    """Read and check a plan: every name in it leads somewhere."""
    path = folder / PLAN
    contents = read(path, Contents)
    own = {file.stem: file for file in sorted(folder.glob("*.toml")) if file.name != PLAN}
    data = own | {name: PRESETS / f"{name}.toml" for name in presets() if name not in own}
    plan = Plan(folder, contents, data)
    for key, name, kind, known in _names(plan):
        if name not in known:
            raise UserError(
                f"{path}: {key} = {name!r}: no such {kind}{did_you_mean(name, known)} (there are {', '.join(known)})"
            )
    return plan


def read(path: Path, kind: type[AnyPart]) -> AnyPart:
    """A TOML file of this kind; the first mistake becomes one line that names the key, the value and the rule."""
    tables = read_tables(path)
    as_json(tables, str(path))  # what this refuses, nobody can print either
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error, kind)}") from None


def _names(plan: Plan) -> Iterable[tuple[str, str, str, list[str]]]:
    """Every name in the plan: its key, itself, what it must be, and those there are."""
    found = plan.contents
    data, sizes, rows = list(plan.data), list(found.sizes), list(found.rows)
    for kind, tables in (("sizes", found.sizes), ("rows", found.rows)):
        for name, table in tables.items():
            yield from ((f"{kind}.{name}.on", one, "data set", data) for one in table.on)
    for name, row in found.rows.items():
        yield (
            f"rows.{name}.method",
            row.method,
            "method",
            [*METHODS, *installed(), *([row.method] if ":" in row.method else [])],
        )
        if row.published:
            yield f"rows.{name}.published", row.published, "row in the paper's table", list(TABLE1)
    for name, study in found.studies.items():
        key = f"studies.{name}"
        for column in columns(study):
            yield f"{key}.data", column.data, "data set", data
            if column.size:
                yield f"{key}.size", column.size, "size", sizes
        yield from ((f"{key}.rows", row, "row", rows) for row in row_names(study))
        if isinstance(study, Table):
            yield from ((f"{key}.one_seed", row, "row of this study", study.rows) for row in study.one_seed)
        known = [*ALL_SCORES, *SOMETIMES]
        scores = study.scores if isinstance(study, Table | Curve) else []
        yield from ((f"{key}.scores", score, "score", known) for score in scores)


def columns(study: Table | Curve | Reliability | Cost) -> list[Column]:
    """Every federation of a study."""
    match study:
        case Table() | Curve():
            return study.columns
        case Reliability():
            return list(study.panels)
        case _:
            return [study.column]


def row_names(study: Table | Curve | Reliability | Cost) -> list[str]:
    """Every row of a study, once."""
    match study:
        case Curve():
            names = [line.row for line in study.lines]
        case Reliability():
            names = [panel.row for panel in study.panels]
        case _:
            names = study.rows
    return list(dict.fromkeys(names))


def _explain(error: ValidationError, whole: type[Part]) -> str:
    first = error.errors()[0]
    kinds = {"table", "curve", "reliability", "cost"}
    location = first["loc"]
    # pydantic puts the kind of a study into the path, where the file has none.
    shown = [str(part) for at, part in enumerate(location) if not (at == 2 and part in kinds)]
    dotted = ".".join(shown) or "the whole file"
    if first["type"] == "extra_forbidden":
        known = _keys(whole, location[:-1])
        return f"unknown key {dotted!r}{did_you_mean(str(location[-1]), known)} (known here: {', '.join(known)})"
    if first["type"] == "missing":
        return f"{dotted} is missing"
    return f"{dotted} = {first['input']!r}: {first['msg']}"


def _keys(kind: Any, location: tuple[str | int, ...]) -> list[str]:
    """The keys of the table at this place of a file of this kind."""
    for part in location:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        if get_origin(kind) in (list, dict):
            kind = get_args(kind)[-1]
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields[str(part)]
            kind = field.annotation
        else:
            kind = next(one for one in get_args(kind) if part in get_args(one.model_fields["kind"].annotation))
    return list(kind.model_fields)
