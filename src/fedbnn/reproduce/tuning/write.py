"""Trials as JSON and Markdown, and the best settings as a configuration that `fedbnn run` takes."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.base.files import write_atomically, write_json
from fedbnn.federation.evaluation import MEASURES
from fedbnn.report import table
from fedbnn.report.figures import Spread, cell
from fedbnn.report.variants import NAMES
from fedbnn.reproduce.cells import planned
from fedbnn.reproduce.tables import heading, unit_of
from fedbnn.reproduce.tuning.search import Tuning, scores_of
from fedbnn.reproduce.tuning.trials import Trial, Trials
from fedbnn.runs.config import raw_config, toml_value

SHOWN = ("own_class_accuracy", "all_class_accuracy", "nll", "all_class_nll", "ece")
SHOWN_IN_REGRESSION = ("crps", "rmse", "nll", "coverage_90", "width_90")


def write_trials(trials: Trials) -> None:
    """trials.json and trials.md, of all that is done so far."""
    contents = trials.tuning.contents
    found = {
        row: [
            {"settings": one.settings, "variants": one.variants, "criterion": judged(trials.tuning, row, one)}
            for one in done
        ]
        for row, done in trials.done.items()
    }
    write_json(trials.folder / "trials.json", {"title": contents.title, "seeds": contents.seeds, "methods": found})
    write_atomically(trials.folder / "trials.md", markdown(trials))


def judged(tuning: Tuning, row: str, trial: Trial) -> dict[str, float | None]:
    """What a candidate was judged by, each sum of scores under its name; None where a run failed."""
    return {
        aim: (-value if MEASURES[scores_of(aim)[0]].higher_is_better else value) if math.isfinite(value) else None
        for aim, value in zip(tuning.tried(row).aim, trial.cost, strict=True)
    }


def markdown(trials: Trials) -> str:
    """A row for every scored model of every candidate, the best candidate of each method first."""
    contents = trials.tuning.contents
    shown = SHOWN_IN_REGRESSION if trials.tuning.regression else SHOWN
    rows = [
        table.row(
            row,
            settings_text(trial),
            NAMES.get(variant, variant),
            *(cell(Spread.of([of[score]]), unit_of(score), even_zero=True) for score in shown),
            judged_text(trials.tuning, row, trial),
        )
        for row, done in trials.done.items()
        for trial in sorted(done, key=lambda one: list(one.cost))
        for variant, of in trial.variants.items() or [("", dict.fromkeys(shown, math.nan))]
    ]
    titles = ["method", "settings", "scored", *map(heading, shown), "judged by"]
    lines = [f"# {contents.title}", "", table.markdown(table.table(titles, rows))]
    seeds = ", ".join(map(str, contents.seeds))
    lines += ["", f"Means over seeds {seeds}, on validation records; the best of each method first."]
    if len(set(trials.counts.values())) > 1:
        counts = ", ".join(f"{row} {count}" for row, count in trials.counts.items())
        lines += ["", f"Methods have different numbers of candidates: {counts}."]
    if left := sum(trials.counts.values()) - sum(map(len, trials.done.values())):
        lines += ["", f"{left} candidates are not tried yet."]
    return "\n".join(lines) + "\n"


def settings_text(trial: Trial) -> str:
    return ", ".join(f"{key}={toml_value(value)}" for key, value in trial.settings.items()) or "defaults"


def judged_text(tuning: Tuning, row: str, trial: Trial) -> str:
    found = judged(tuning, row, trial)
    return ", ".join("failed" if value is None else f"{aim} {value:.3f}" for aim, value in found.items())


def check_writable(tuning: Tuning, path: Path, source: Path | None) -> None:
    """Refuse, before any work, what `write_best` could not write."""
    if source is not None and path.resolve() == source.resolve():
        raise UserError(f"--write {path}: that is the file to search for; choose another name")
    if not path.resolve().parent.is_dir():
        raise UserError(f"--write {path}: there is no such folder")
    if tuning.contents.scale and len(tuning.contents.search) > 1:
        raise UserError(f"--write {path}: a configuration holds one row of a plan; choose it with --methods")


def write_best(trials: Trials, path: Path) -> None:
    """The configuration that was searched for, with the best settings of each method."""
    tuning, rows = trials.tuning, list(trials.done)
    base = tuning.plan.data[tuning.column.data]
    changes = [f'method="{tuning.method(rows[0])}"'] if len(rows) == 1 else []
    for row in rows:
        if not math.isfinite(trials.best(row).cost[0]):
            raise UserError(f"--write {path}: no candidate of '{row}' came to an end, so nothing is written")
        changes += [*planned(tuning.plan, tuning.column, row), *tuning.overrides(row, trials.best(row).settings)]
    found, before = raw_config(base, changes), raw_config(base)
    for key in ("evaluation", "checkpoint_every"):  # how trials were scored is no part of what was found
        found.pop(key, None)
        found |= {key: before[key]} if key in before else {}
    seeds = ", ".join(map(str, tuning.contents.seeds))
    head = f"# Settings found by `fedbnn tune` for {', '.join(rows)}, on validation records of seeds {seeds}."
    write_atomically(path, "\n".join([head, *toml(found)]) + "\n")


def toml(table: Mapping[str, Any], name: str = "") -> list[str]:
    """Nested tables as the lines of a TOML file."""
    values = [f"{_key(key)} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    lines = ["", f"[{name}]", *values] if name and values else values
    for key, inner in table.items():
        if isinstance(inner, dict):
            lines += toml(inner, f"{name}.{_key(key)}" if name else _key(key))
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
