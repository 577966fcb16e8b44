"""From a study's JSON to its section of the page."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from fedbnn.federation.evaluation import MEASURES
from fedbnn.federation.metrics import ReliabilityBins
from fedbnn.report.charts.reliability import reliability_diagram
from fedbnn.report.figures import Spread, cell, duration, size
from fedbnn.report.table import Cell, Row, Table, row, table
from fedbnn.reproduce import tables
from fedbnn.reproduce.blocks import Figure, Section
from fedbnn.reproduce.charts import Drawn, Panel, curve_chart
from fedbnn.reproduce.collect import over_models

PANEL = 440.0

Json = Mapping[str, Any]
Blocks = list[Table | Figure]


def section(study: Json) -> Section:
    kinds: dict[str, Callable[[Json], Blocks]] = {
        "table": lambda study: [*tables.tables(study)],
        "curve": _curve,
        "reliability": _reliability,
        "cost": _cost,
    }
    blocks = kinds[study["kind"]](study)
    changed = f"Changed on the command line: {', '.join(study['changed'])}." if study["changed"] else ""
    notes = [tables.seeds_note(study), tables.privacy_note(study), changed, tables.missing_note(study)]
    anchor, title, reading = (str(study[name]) for name in ("study", "title", "reading"))
    return Section(anchor, title, reading, blocks, [note for note in notes if note])


def _curve(study: Json) -> Blocks:
    """The chart, a panel for each federation and score, and the numbers of each."""
    labels = _labels(study)
    panels: list[Panel] = []
    numbers: Blocks = []
    for number, column in enumerate(study["columns"]):
        where = "" if len(study["columns"]) == 1 else f"{tables.column_title(column)}: "
        for score in study["scores"]:
            drawn: list[Drawn] = []
            rows: list[Row] = []
            for at, line in enumerate(study["lines"]):
                place = (number, at)
                entries = {entry["x"]: entry for entry in study["entries"] if (entry["column"], entry["line"]) == place}
                title = line["title"] or study["row_titles"][line["row"]]
                values = {x: _values(entry, line, score) for x, entry in entries.items()}
                drawn.append(Drawn(title, list(values.items())))
                shown = {x: tables.score_cell(entry, values[x], score) for x, entry in entries.items()}
                rows.append(row(title, *(shown.get(x, shown.get(None, "")) for x in labels)))
            panels.append(Panel(f"{where}{MEASURES[score].title}", score, drawn))
            numbers.append(table([study["x"], *labels.values()], rows, f"{where}{tables.heading(score)}"))
    if not any(over for panel in panels for line in panel.lines for _, over in line.points):
        return numbers
    columns = ", ".join(tables.column_title(column) for column in study["columns"])
    scores = ", ".join(MEASURES[name].title for name in study["scores"])
    caption = f"{columns}: {scores} against {study['x']}"
    return [Figure(study["study"], caption, curve_chart(study, panels, labels)), *numbers]


def _labels(study: Json) -> dict[float, str]:
    """What the axis says at each x, from left to right."""
    points = {point["x"]: point["label"] for line in study["lines"] for point in line["points"]}
    return {x: points[x] or (f"{x:.0%}" if study["percent"] else f"{x:g}") for x in sorted(points)}


def _values(entry: Json, line: Json, score: str) -> list[float]:
    """A score of each finished run: of the clients with some models, or of one of its scored models."""
    values = [
        over_models(run["models"], line["models"], score)
        if line["models"]
        else tables.value(run, line["scored"] or run["scored"], score)
        for run in entry["runs"]
    ]
    return [value for value in values if value is not None]


def _reliability(study: Json) -> Blocks:
    """A diagram a panel, and the two errors beside the paper's."""
    errors = ("ece", "mce")
    figures: Blocks = []
    rows: list[Row] = []
    for panel, entry in zip(study["panels"], study["entries"], strict=True):
        title = panel["title"] or f"{study['row_titles'][entry['row']]}, {tables.column_title(panel)}"
        cells = [tables.NOT_RUN, ""]
        if entry["runs"]:
            bins: ReliabilityBins = reduce(
                add, (ReliabilityBins.from_dict(run["reliability"]) for run in entry["runs"])
            )
            name = "-".join(part for part in (study["study"], entry["data"], entry["size"], entry["row"]) if part)
            figures.append(Figure(name, title, reliability_diagram(bins, title, PANEL)))
            cells = [f"{bins.ece:.3f}", f"{bins.mce:.3f}"]
        rows.append(row(title, *cells))
        if "published" in entry:
            rows.append(row(tables.PAPER, *(f"{entry['published'][name]:.3f}" for name in errors), kind="paper"))
    return [table(["", *map(tables.heading, errors)], rows), *figures]


def _cost(study: Json) -> Blocks:
    """What was measured, and what the paper's sizes would give."""
    rows = []
    for entry in study["entries"]:
        runs = entry["runs"]
        cells: list[Cell | str] = [tables.NOT_RUN, *[""] * 4]
        if runs:
            cells = [
                cell(_spread(runs, "bytes_up_per_client_round"), size),
                cell(_spread(runs, "bytes_down_per_client_round"), size),
                f"{Spread.of([_over_clients(run, 'weights') for run in runs]).mean:,.0f}",
                cell(Spread.of([_over_clients(run, "seconds") for run in runs]), duration),
                cell(_spread(runs, "seconds"), duration),
            ]
        rows.append(row(study["row_titles"][entry["row"]], *cells))
    titles = ["", "sent", "received", "weights", "training of a client", "whole run"]
    measured = table(titles, rows, f"{tables.column_title(study['column'])}: a client in a round, and time")
    sizes = study["paper_sizes"]
    rows = [
        row(
            tables.DATA[one["data"]],
            cell(one["output_bytes"], size),
            cell(one["weight_bytes"], size),
            f"{one['weight_bytes'] / one['output_bytes']:.1f}",
        )
        for one in sizes
    ]
    titles = ["", f"outputs on {sizes[0]['points']} points", "weights of VGG9", "weights against outputs"]
    return [measured, table(titles, rows, "At the paper's scale: one message, at 4 bytes a number")]


def _spread(runs: Sequence[Json], key: str) -> Spread:
    return Spread.of([run[key] for run in runs])


def _over_clients(run: Json, key: str) -> float:
    """The mean over all clients."""
    mean = over_models(run["models"], run["models"], key)
    assert mean is not None
    return mean
