"""Charts of a study, from its JSON, and how a chart becomes a file of its own."""

import math
from collections.abc import Mapping, Sequence
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
LEGEND_ROW = 20.0


@dataclass(frozen=True)
class Drawn:
    """A line of a chart: (x, values over seeds) for each point; x is None where one value holds everywhere."""

    title: str
    points: Sequence[tuple[float | None, Sequence[float]]]


def curve_chart(study: Mapping[str, Any], lines: Sequence[Drawn]) -> Markup:
    """Means as lines, the range over seeds as bands; the legend stands below, so that the file is complete."""
    score = MEASURES[study["score"]]
    percent = score.unit == "share"
    height = PLOT + 46 + LEGEND_ROW * len(lines)
    drawing = Drawing(WIDTH, height, f"{score.title} against {study['x']}.")
    box = Box(52, 22, WIDTH - 22, PLOT)
    drawing.words(box.left - 44, 12, score.title, "label")
    values = [value for line in lines for _, over in line.points for value in over]
    places = [x for line in lines for x, _ in line.points if x is not None]
    least, ceiling = (0.1, 1.0) if percent else (0.02, math.inf)
    y = vertical(drawing, box, nice_ticks(*span(values, least, 0.0, ceiling), 6), percent)
    low, high = span(places, 1e-9)
    ticks = nice_ticks(low, high, 6)
    x = horizontal(drawing, box, ticks, study["x"], percent=study["percent"], low=low, high=high)
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
            tip = f"{line.title}, {place:g}: {cell(Spread.of(over), unit_of(study['score']), even_zero=True)}"
            drawing.marker(look.marker, x(place), y(_mean(over)), 3.8, look.mark("dot"), tip=tip)
    for at, line in enumerate(lines):
        look, level = Series(at), PLOT + 56 + LEGEND_ROW * at
        drawing.path([(box.left, level), (box.left + 34, level)], f"line {look.colour}", dash=look.dash)
        if any(place is not None for place, _ in line.points):
            drawing.marker(look.marker, box.left + 17, level, 3.8, look.mark("dot"))
        drawing.words(box.left + 44, level + 4, line.title)
    return drawing.markup()


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
