"""Tables of a study, from its JSON: every scored model its own row, the paper's number below, the best marked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbnn.federation.evaluation import MEASURES
from fedbnn.report.figures import UNITS, Spread, Unit, best_of, cell, duration, percent, size
from fedbnn.report.privacy import rounded_up
from fedbnn.report.table import Cell, Row, Table, row, table
from fedbnn.report.variants import NAMES

NOT_RUN = "not run"
PAPER = "the paper"
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "heart": "Heart disease", "digits": "Digits"}

COSTS: list[tuple[str, str, Unit]] = [
    ("bytes_up_per_client_round", "sent by a client in a round", size),
    ("seconds", "time of a whole run", duration),
]

Json = Mapping[str, Any]


def tables(study: Json) -> list[Table]:
    """A table a score; one table with all scores where there is one column only."""
    columns, scores = study["columns"], study["scores"]
    if len(columns) == 1:
        titles = [heading(score) for score in scores]
        return [_table(study, column_title(columns[0]), titles, [(0, score) for score in scores])]
    titles = [column_title(column) for column in columns]
    found = [_table(study, heading(s), titles, [(at, s) for at in range(len(columns))]) for s in scores]
    return found + ([_costs(study, titles, *one) for one in COSTS] if study.get("cost") else [])


def heading(score: str) -> str:
    """What a score is called over its numbers, which have no sign."""
    measure = MEASURES[score]
    return f"{measure.title}, %" if measure.unit == "share" else measure.title


def unit_of(score: str) -> Unit:
    return percent if MEASURES[score].unit == "share" else UNITS[MEASURES[score].unit]


def column_title(column: Json) -> str:
    return str(column["title"] or f"{DATA.get(column['data'], column['data'])} {column['size']}".strip())


def value(run: Json, variant: str, score: str) -> float | None:
    """A score of one of a run's models; what is only known of the whole run belongs to its headline."""
    of_model = run["variants"].get(variant, {}).get(score)
    if of_model is None and variant == run["scored"]:
        of_model = run.get(score)
    return None if of_model is None else float(of_model)


def _table(study: Json, caption: str, titles: list[str], places: Sequence[tuple[int, str]]) -> Table:
    by_place = {(entry["row"], entry["column"]): entry for entry in study["entries"]}
    models: list[tuple[str, str]] = []  # row and variant
    for name in dict.fromkeys(entry["row"] for entry in study["entries"]):
        models += [(name, variant) for variant in _variants([by_place[name, at] for at, _ in places]) or [""]]
    columns = []
    for at, score in places:
        entries = [(by_place[name, at], variant) for name, variant in models]
        columns.append(_column(score, [(entry, _values(entry, variant, score)) for entry, variant in entries]))
    rows: list[Row] = []
    for number, (name, variant) in enumerate(models):
        cells = [column[number] for column in columns]
        more = number > 0 and models[number - 1][0] == name
        rows.append(row(_label(study["row_titles"][name], variant), *cells, kind="more" if more else ""))
        last = number + 1 == len(models) or models[number + 1][0] != name
        theirs = [_published(by_place[name, at], score) for at, score in places]
        if last and study["published"] and any(theirs):
            rows.append(row(PAPER, *theirs, kind="paper"))
    return table(["", *titles], rows, caption)


def _costs(study: Json, titles: list[str], key: str, caption: str, unit: Unit) -> Table:
    """What all of a run's models cost together, a row of the plan each."""
    cells: dict[str, list[Cell]] = {}
    for entry in study["entries"]:
        runs = entry["runs"]
        one = cell(Spread.of([run[key] for run in runs]), unit) if runs else Cell(NOT_RUN)
        cells.setdefault(entry["row"], []).append(one)
    return table(["", *titles], [row(study["row_titles"][name], *of) for name, of in cells.items()], caption)


def _variants(entries: Sequence[Json]) -> list[str]:
    """The models that any run scored, headline first."""
    return list(
        dict.fromkeys(v for entry in entries for run in entry["runs"] for v in (run["scored"], *run["variants"]))
    )


def _values(entry: Json, variant: str, score: str) -> list[float]:
    return [number for run in entry["runs"] if (number := value(run, variant, score)) is not None]


def _label(title: str, variant: str) -> str:
    return title if variant in ("", "personal") else f"{title}, {NAMES.get(variant, variant)}"


def _column(score: str, entries: Sequence[tuple[Json, Sequence[float]]]) -> list[Cell]:
    """One score of all rows; the best is marked once every row has run."""
    means = [Spread.of(values).mean for _, values in entries]
    best = [False] * len(means)
    if not any(map(math.isnan, means)):
        best = best_of(means, unit_of(score), MEASURES[score].higher_is_better)
    return [score_cell(entry, values, score, mark) for (entry, values), mark in zip(entries, best, strict=True)]


def score_cell(entry: Json, values: Sequence[float], score: str, best: bool = False) -> Cell:
    """A score of one entry; how many seeds are done, where that is not all of them."""
    if not entry["runs"]:
        return Cell(NOT_RUN)
    shown = cell(Spread.of(values), unit_of(score), best=best, even_zero=True)
    done, planned = len(entry["runs"]), len(entry["seeds"])
    return shown if done == planned else replace(shown, sign=f" ({done} of {planned} seeds)")


def _published(entry: Json, score: str) -> str:
    if score != "own_class_accuracy" or "published" not in entry:
        return ""
    return f"{entry['published']['mean']:.1f} ± {entry['published']['spread']:.1f}"


def seeds_note(study: Json) -> str:
    """Over how many seeds the numbers are means."""
    counts = sorted({len(entry["seeds"]) for entry in study["entries"]})
    if counts == [1]:
        return "One seed."
    several = " or ".join(str(count) for count in counts)
    if study["kind"] == "reliability":
        return f"Predictions of {several} seeds, pooled."
    return f"Mean ± standard deviation over {several} seeds; a number without ± is of one seed."


def privacy_note(study: Json) -> str:
    """Which rows are private, and how."""
    if any("epsilon" in line["setting"] for line in study.get("lines", [])):
        return "What a run spends on privacy stands on the axis; level lines guarantee nothing."
    spent: dict[str, Json] = {}
    for entry in study["entries"]:
        for run in entry["runs"]:
            before = spent.get(entry["row"])
            if run.get("epsilon_spent") is not None and (not before or run["epsilon_spent"] > before["epsilon_spent"]):
                spent[entry["row"]] = run
    parts = [
        f"{study['row_titles'][row]}: ε = {rounded_up(run['epsilon_spent'], 2):.2f} at δ = {run['delta']:g} for one "
        f"{run['privacy_unit']}{_while_joined(run)}"
        for row, run in spent.items()
    ]
    others = any(entry["runs"] and entry["row"] not in spent for entry in study["entries"])
    return (
        f"Spent on privacy: {'; '.join(parts)}.{' All other rows guarantee nothing.' if others else ''}"
        if parts
        else ""
    )


def _while_joined(run: Json) -> str:
    joined = run.get("epsilon_joined")
    return f" ({rounded_up(joined, 2):.2f} as long as the secure aggregation holds)" if joined is not None else ""


def missing_note(study: Json) -> str:
    """How much of the plan is not done yet."""
    planned = sum(len(entry["seeds"]) for entry in study["entries"])
    done = sum(len(entry["runs"]) for entry in study["entries"])
    return "" if done == planned else f"{done} of {planned} runs are finished."
