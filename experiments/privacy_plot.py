"""The picture of experiments/privacy.py: own-class and all-class accuracy against epsilon, for each data set."""

from collections.abc import Sequence
from typing import Any

from fedbnn.report.axes import Box, span, vertical
from fedbnn.report.series import Series
from fedbnn.report.svg import Drawing, Scale
from fedbnn.report.ticks import nice_ticks

COLOURS = ("#1b6ca8", "#d1495b", "#3c8d5a", "#8d6cab", "#b8860b", "#555555", "#00798c")
STYLE = (
    "text{font:12px sans-serif;fill:#333}.gridline{stroke:#ddd}.axis{stroke:#888}.title{font-weight:bold}"
    ".line{fill:none;stroke:var(--s);stroke-width:2}.dot{fill:var(--s);stroke:#fff;stroke-width:.7}"
    ".band{fill:var(--s);opacity:.15}.hollow{fill:#fff;stroke:var(--s);stroke-width:1.6}"
    + "".join(f".s{index}{{--s:{colour}}}" for index, colour in enumerate(COLOURS))
)
PANEL, HEIGHT, LEGEND = 430.0, 250.0, 26.0
POSITIONS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 1e6)
SCORES = {"own_class_accuracy": "own classes", "all_class_accuracy": "all classes"}
Row = dict[str, Any]


def draw(rows: Sequence[Row]) -> str:
    """The whole picture as an SVG file."""
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    lines = list(dict.fromkeys((row["arm"], row["scored"]) for row in rows))
    legend = LEGEND * ((len(lines) + 2) // 3)
    drawing = Drawing(2 * PANEL, HEIGHT * len(datasets) + legend, "Accuracy against epsilon")
    drawing.root.set("xmlns", "http://www.w3.org/2000/svg")
    drawing.root.set("font-family", "sans-serif")
    drawing.shape("style", "").text = STYLE
    drawing.bar(0, 0, drawing.width, drawing.height, "paper")
    drawing.root[-1].set("fill", "#fff")
    for down, dataset in enumerate(datasets):
        for across, score in enumerate(SCORES):
            box = Box(across * PANEL + 52, down * HEIGHT + 28, (across + 1) * PANEL - 16, (down + 1) * HEIGHT - 42)
            _panel(drawing, box, [row for row in rows if row["dataset"] == dataset], dataset, score, lines)
    for index, (arm, scored) in enumerate(lines):
        x, y = 20 + (index % 3) * 2 * PANEL / 3, HEIGHT * len(datasets) + LEGEND * (index // 3) + 10
        look = Series(index)
        drawing.path([(x, y), (x + 32, y)], f"line {look.colour}", dash=look.dash)
        drawing.marker(look.marker, x + 16, y, 4, look.mark("dot"))
        drawing.words(x + 40, y + 4, f"{arm} ({scored.replace('_', '-')})")
    return str(drawing.markup()) + "\n"


def _panel(
    drawing: Drawing, box: Box, rows: Sequence[Row], dataset: str, score: str, lines: Sequence[tuple[str, str]]
) -> None:
    drawing.words(box.left, box.top - 10, f"{dataset}: accuracy on {SCORES[score]}", "title")
    means = [row[score]["mean"] for row in rows]
    y = vertical(drawing, box, nice_ticks(*span(means, 0.1, 0.0, 1.0), 6), percent=True)
    places = Scale(-0.4, len(POSITIONS) - 0.6, box.left, box.right)  # evenly spaced: about logarithmic
    drawing.line(box.left, box.bottom, box.right, box.bottom, "axis")
    for place, epsilon in enumerate(POSITIONS):
        drawing.words(
            places(place), box.bottom + 17, "∞" if epsilon == POSITIONS[-1] else f"{epsilon:g}", "tick", "middle"
        )
    drawing.words((box.left + box.right) / 2, box.bottom + 33, "ε (smaller is more private)", "label", "middle")
    for index, line in enumerate(lines):
        look, mine = Series(index), [row for row in rows if (row["arm"], row["scored"]) == line]
        if not mine:
            continue
        if mine[0]["epsilon"] is None:  # no budget: the same at every epsilon
            height = y(mine[0][score]["mean"])
            drawing.path([(box.left, height), (box.right, height)], f"line {look.colour}", dash=look.dash)
            drawing.marker(look.marker, box.right - 6, height, 3.6, look.mark("dot"))
            continue
        points = sorted((POSITIONS.index(row["epsilon"]), row[score]) for row in mine)
        upper = [(places(at), y(value["mean"] + value["sd"])) for at, value in points]
        lower = [(places(at), y(value["mean"] - value["sd"])) for at, value in reversed(points)]
        drawing.path(upper + lower, f"band {look.colour}", closed=True)
        drawing.path([(places(at), y(value["mean"])) for at, value in points], f"line {look.colour}", dash=look.dash)
        for at, value in points:
            drawing.marker(look.marker, places(at), y(value["mean"]), 3.6, look.mark("dot"))
