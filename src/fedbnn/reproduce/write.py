"""Results on disk: each study as JSON, Markdown and SVG, and all of them as one page. Every file is replaced whole."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.report.figures import counted, duration, show
from fedbnn.report.svg import printable
from fedbnn.reproduce import page
from fedbnn.reproduce.blocks import Section, markdown_page
from fedbnn.reproduce.cells import Entry
from fedbnn.reproduce.charts import alone
from fedbnn.reproduce.collect import FORMAT, collect
from fedbnn.reproduce.plan import Plan, Reliability
from fedbnn.reproduce.sections import section
from fedbnn.runs.folder import read_json, write_atomically, write_json


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made: {error.strerror}; choose another --out") from None


def write_study(out: Path, plan: Plan, name: str, entries: Sequence[Entry], changes: Sequence[str]) -> None:
    """NAME.json, and from it alone NAME.md and its figures.

    Of a run that is not there, what the folder's studies say already is kept: a part can be made anew in a clone.
    """
    path = out / f"{name}.json"
    write_json(path, collect(plan, name, entries, changes, known_runs(out, plan, name)))
    written = section(read_json(path))
    for figure in written.figures:
        write_atomically(out / f"{figure.name}.svg", alone(figure.chart))
    write_atomically(out / f"{name}.md", written.markdown(level=1))


def known_runs(out: Path, plan: Plan, name: str) -> dict[str, dict[str, Any]]:
    """What the results say of runs, by their names, which end in a hash of their configuration.

    Studies share runs, so this study's own JSON is asked last and the others' before it. A diagram needs bins, which
    only a study of diagrams keeps.
    """
    diagrams = isinstance(plan.contents.studies[name], Reliability)
    studies = _written(out, plan)
    runs: dict[str, dict[str, Any]] = {}
    for path in sorted(studies, key=lambda path: path.stem == name):
        with _readable(path):
            runs |= {run["run"]: dict(run) for entry in studies[path]["entries"] for run in entry["runs"]}
    if diagrams:
        return {known: run for known, run in runs.items() if "reliability" in run}
    return {known: {key: run[key] for key in run if key != "reliability"} for known, run in runs.items()}


def write_page(out: Path, plan: Plan) -> Path:
    """README.md and index.html, of all studies of the plan that were ever written to this folder."""
    studies = _written(out, plan)
    sections: list[Section] = []
    seconds: dict[str, float] = {}
    for path, study in studies.items():
        with _readable(path):
            sections.append(section(study))
            seconds |= {run["run"]: float(run["seconds"]) for entry in study["entries"] for run in entry["runs"]}
    title, about = plan.contents.title, [*plan.contents.about, *_cost(seconds)]
    write_atomically(out / "README.md", printable(markdown_page(title, about, sections)))
    write_atomically(out / "index.html", page.render(title, about, sections))
    return out / "index.html"


def _cost(seconds: Mapping[str, float]) -> list[str]:
    """How many runs, and how long they took; studies share runs, and each counts once."""
    if not seconds:
        return []
    return [f"{counted(len(seconds), 'run')}, {show(math.fsum(seconds.values()), duration)} one after the other."]


def _written(out: Path, plan: Plan) -> dict[Path, dict[str, Any]]:
    """What earlier commands wrote of the plan's studies, by file."""
    studies = {path: read_json(path) for name in plan.contents.studies if (path := out / f"{name}.json").exists()}
    return {path: study for path, study in studies.items() if isinstance(study, dict) and study.get("format") == FORMAT}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """A file that somebody has changed is named in one line."""
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        kind = type(error).__name__
        raise UserError(
            f"{path}: no study that this version can read ({kind}: {error}); delete it to make it anew"
        ) from None
