"""Charts of a study, from its JSON, and how a chart becomes a file of its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from markupsafe import Markup

from fedbnn.federation.evaluation import MEASURES
from fedbnn.report.axes import Box, horizontal, span, vertical
from fedbnn.report.figures import Spread, cell
from fedbnn.report.series import Series
from fedbnn.report.svg import Drawing
from fedbnn.report.ticks import nice_ticks
from fedbnn.reproduce.tables import unit_of

WIDTH, PLOT = 440.0, 250.0
PANEL = PLOT + 46  # with the axis below it
LEGEND_ROW = 20.0


@dataclass(frozen=True)
class Drawn:
    """A line of a chart: (x, values over seeds) for each point; x is None where one value holds everywhere."""

    title: str
    points: Sequence[tuple[float | None, Sequence[float]]]


@dataclass(frozen=True)
class Panel:
    """One plotting area: a score on one federation."""

    title: str
    score: str
    lines: Sequence[Drawn]


def curve_chart(study: Mapping[str, Any], panels: Sequence[Panel], labels: Mapping[float, str]) -> Markup:
    """Means as lines, the range over seeds as bands; the legend stands below, so that the file is complete.

    Federations stand below each other, their scores side by side; `labels` is what the axis says at each x.
    """
    across = len(study["scores"])
    down = len(panels) // across
    legend = panels[0].lines
    titles = ", ".join(MEASURES[panel.score].title for panel in panels[:across])
    drawing = Drawing(across * WIDTH, down * PANEL + LEGEND_ROW * len(legend), f"{titles} against {study['x']}.")
    for at, panel in enumerate(panels):
        left, top = at % across * WIDTH, at // across * PANEL
        _panel(drawing, Box(left + 52, top + 22, left + WIDTH - 22, top + PLOT), panel, study, labels)
    for at, line in enumerate(legend):
        look, left, level = Series(at), 52, down * PANEL + 10 + LEGEND_ROW * at
        drawing.path([(left, level), (left + 34, level)], f"line {look.colour}", dash=look.dash)
        if any(place is not None for place, _ in line.points):
            drawing.marker(look.marker, left + 17, level, 3.8, look.mark("dot"))
        drawing.words(left + 44, level + 4, line.title)
    return drawing.markup()


def _panel(drawing: Drawing, box: Box, panel: Panel, study: Mapping[str, Any], labels: Mapping[float, str]) -> None:
    percent, lines = MEASURES[panel.score].unit == "share", panel.lines
    drawing.words(box.left - 44, box.top - 10, panel.title, "label")
    values = [value for line in lines for _, over in line.points for value in over]
    places = [x for line in lines for x, _ in line.points if x is not None]
    least, ceiling = (0.1, 1.0) if percent else (0.02, math.inf)
    y = vertical(drawing, box, nice_ticks(*span(values, least, 0.0, ceiling), 6), percent)
    x = _evenly(drawing, box, study["x"], labels) if study["even"] else _to_scale(drawing, box, study, places)
    for at, line in reversed(list(enumerate(lines))):
        look = Series(at)
        points = [(place, over) for place, over in line.points if over]
        if not points:
            continue
        if points[0][0] is None:
            level = y(_mean(points[0][1]))
            drawing.path([(box.left, level), (box.right, level)], f"line {look.colour}", dash=look.dash)
            continue
        known = sorted((place, over) for place, over in points if place is not None)
        if any(len(over) > 1 for _, over in known):
            upper = [(x(place), y(max(over))) for place, over in known]
            lower = [(x(place), y(min(over))) for place, over in reversed(known)]
            drawing.path(upper + lower, f"band {look.colour}", closed=True)
        drawing.path([(x(place), y(_mean(over))) for place, over in known], f"line {look.colour}", dash=look.dash)
        for place, over in known:
            tip = f"{line.title}, {labels[place]}: {cell(Spread.of(over), unit_of(panel.score), even_zero=True)}"
            drawing.marker(look.marker, x(place), y(_mean(over)), 3.8, look.mark("dot"), tip=tip)


def _to_scale(
    drawing: Drawing, box: Box, study: Mapping[str, Any], places: Sequence[float]
) -> Callable[[float], float]:
    low, high = span(places, 1e-9)
    ticks = nice_ticks(low, high, 6)
    return horizontal(drawing, box, ticks, study["x"], percent=study["percent"], low=low, high=high)


def _evenly(drawing: Drawing, box: Box, title: str, labels: Mapping[float, str]) -> Callable[[float], float]:
    """An axis whose points stand evenly apart: about logarithmic for budgets, and infinity has a place."""
    places = sorted(labels)
    ticks = [float(at) for at in range(len(places))]
    texts = [labels[place] for place in places]
    scale = horizontal(drawing, box, ticks, title, low=-0.4, high=len(places) - 0.6, texts=texts)
    return lambda place: scale(places.index(place))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def alone(chart: Markup) -> str:
    """A chart of the page as an SVG file: with its style sheet, a size and a ground, in light and dark."""
    root = fromstring(str(chart))  # noqa: S314  our own drawing
    _, _, width, height = root.attrib["viewBox"].split()
    style = Element("style")
    style.text = f"{(files('fedbnn.report') / 'chart.css').read_text('utf-8')}svg {{ font-family: sans-serif; }}\n"
    ground = Element("rect", {"width": "100%", "height": "100%", "style": "fill: var(--paper)"})
    whole = Element("svg", {**root.attrib, "xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height})
    whole.extend([style, ground])
    SubElement(whole, "g").extend(list(root))
    return tostring(whole, encoding="unicode") + "\n"
