"""From a study's JSON to its section of the page."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from fedbnn.federation.metrics import ReliabilityBins
from fedbnn.report.charts.reliability import reliability_diagram
from fedbnn.report.figures import Spread, duration, show, size
from fedbnn.reproduce import tables
from fedbnn.reproduce.blocks import Figure, Grid, Line, Number, Section
from fedbnn.reproduce.charts import Drawn, Panel, curve_chart
from fedbnn.reproduce.collect import over_models
from fedbnn.reproduce.scores import KINDS

PANEL = 440.0

Json = Mapping[str, Any]
Blocks = list[Grid | Figure]


def section(study: Json) -> Section:
    kinds = {"table": _table, "curve": _curve, "reliability": _reliability, "cost": _cost}
    blocks = kinds[study["kind"]](study)
    notes = [tables.seeds_note(study), tables.privacy_note(study), _changed(study), tables.missing_note(study)]
    return Section(study["study"], study["title"], study["reading"], blocks, [note for note in notes if note])


def _changed(study: Json) -> str:
    return f"Changed on the command line: {', '.join(study['changed'])}." if study["changed"] else ""


def _table(study: Json) -> Blocks:
    return [*tables.grids(study)]


def _curve(study: Json) -> Blocks:
    """The chart, a panel for each federation and score, and the numbers of each."""
    labels = _labels(study)
    panels: list[Panel] = []
    grids: Blocks = []
    for number, column in enumerate(study["columns"]):
        where = "" if len(study["columns"]) == 1 else f"{tables.column_title(column)}: "
        for name in study["scores"]:
            score, drawn, rows = KINDS[name], [], []
            for at, line in enumerate(study["lines"]):
                place = (number, at)
                entries = {entry["x"]: entry for entry in study["entries"] if (entry["column"], entry["line"]) == place}
                title = line["title"] or study["row_titles"][line["row"]]
                values = {x: _values(entry, line, name) for x, entry in entries.items()}
                drawn.append(Drawn(title, list(values.items())))
                known = [x if x in entries else None for x in labels]
                texts = [tables.cell_text(entries[x], values[x], score) if x in entries else "" for x in known]
                rows.append(Line(title, [Number(text) for text in texts]))
            panels.append(Panel(f"{where}{score.title}", score, drawn))
            grids.append(Grid(f"{where}{score.heading}", study["x"], list(labels.values()), rows))
    if not any(over for panel in panels for line in panel.lines for _, over in line.points):
        return grids
    columns = ", ".join(tables.column_title(column) for column in study["columns"])
    scores = ", ".join(KINDS[name].title for name in study["scores"])
    caption = f"{columns}: {scores} against {study['x']}"
    return [Figure(study["study"], caption, curve_chart(study, panels, labels)), *grids]


def _labels(study: Json) -> dict[float, str]:
    """What the axis says at each x, from left to right."""
    points = {point["x"]: point["label"] for line in study["lines"] for point in line["points"]}
    return {x: points[x] or (f"{x:.0%}" if study["percent"] else f"{x:g}") for x in sorted(points)}


def _values(entry: Json, line: Json, score: str) -> list[float]:
    """A score of each finished run: of the clients with some models, or of one of its scored models."""
    found = [
        over_models(run["models"], line["models"], score)
        if line["models"]
        else tables.value(run, line["scored"] or run["scored"], score)
        for run in entry["runs"]
    ]
    return [value for value in found if value is not None]


def _reliability(study: Json) -> Blocks:
    """A diagram a panel, and the two errors beside the paper's."""
    figures: Blocks = []
    rows: list[Line] = []
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
        rows.append(Line(title, [Number(cell) for cell in cells]))
        if "published" in entry:
            theirs = [f"{entry['published'][name]:.3f}" for name in ("ece", "mce")]
            rows.append(Line(tables.PAPER, [Number(text) for text in theirs], paper=True, first=False))
    return [Grid("", "", ["ECE", "MCE"], rows), *figures]


def _cost(study: Json) -> Blocks:
    """What was measured, and what the paper's sizes would give."""
    rows = []
    for entry in study["entries"]:
        runs = entry["runs"]
        texts = [tables.NOT_RUN, *[""] * 4]
        if runs:
            weights = [_over_clients(run, "weights") for run in runs]
            texts = [
                show(_spread(runs, "bytes_up_per_client_round"), size),
                show(_spread(runs, "bytes_down_per_client_round"), size),
                f"{Spread.of(weights).mean:,.0f}",
                show(Spread.of([_over_clients(run, "seconds") for run in runs]), duration),
                show(_spread(runs, "seconds"), duration),
            ]
        rows.append(Line(study["row_titles"][entry["row"]], [Number(text) for text in texts]))
    heads = ["sent", "received", "weights", "training of a client", "whole run"]
    measured = Grid(f"{tables.column_title(study['column'])}: a client in a round, and time", "", heads, rows)
    lines = [
        Line(
            tables.DATA[one["data"]],
            [
                Number(show(one["output_bytes"], size)),
                Number(show(one["weight_bytes"], size)),
                Number(f"{one['weight_bytes'] / one['output_bytes']:.1f}"),
            ],
        )
        for one in study["paper_sizes"]
    ]
    points = study["paper_sizes"][0]["points"]
    heads = [f"outputs on {points} points", "weights of VGG9", "weights against outputs"]
    return [measured, Grid("At the paper's scale: one message, at 4 bytes a number", "", heads, lines)]


def _spread(runs: Sequence[Json], key: str) -> Spread:
    return Spread.of([run[key] for run in runs])


def _over_clients(run: Json, key: str) -> float:
    """The mean over all clients."""
    found = over_models(run["models"], run["models"], key)
    assert found is not None
    return found
