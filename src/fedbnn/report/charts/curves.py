"""Learning curves: a metric against rounds, one line a method, with a band over seeds."""

import math
from dataclasses import dataclass

from markupsafe import Markup

from fedbnn.report.axes import Box, rounds, span, vertical
from fedbnn.report.load import Group
from fedbnn.report.series import Series
from fedbnn.report.svg import Drawing
from fedbnn.report.ticks import nice_ticks

WIDTH, HEIGHT = 440.0, 270.0
FEW, TALL = 6, 360.0
"""More lines than a few get a taller chart, to lie further apart."""
MOST_MARKERS = 13


@dataclass(frozen=True)
class Point:
    """Mean, least and greatest value over the seeds that were evaluated after this round."""

    round: int
    mean: float
    low: float
    high: float


def over_seeds(group: Group, metric: str) -> list[Point]:
    """The curve of a group; rounds without a finite value are left out."""
    by_round: dict[int, list[float]] = {}
    for result in group.results:
        for at, value in zip(result.curve.round, getattr(result.curve, metric), strict=True):
            if math.isfinite(value):
                by_round.setdefault(at, []).append(value)
    return [Point(at, math.fsum(v) / len(v), min(v), max(v)) for at, v in sorted(by_round.items())]


def learning_curves(groups: tuple[Group, ...], metric: str, name: str, percent: bool) -> Markup:
    curves = [over_seeds(group, metric) for group in groups]
    ends = ", ".join(
        f"{group.method} {curve[-1].mean:.3f}" for group, curve in zip(groups, curves, strict=True) if curve
    )
    height = HEIGHT if len(groups) <= FEW else TALL
    drawing = Drawing(WIDTH, height, f"{name} against rounds. At the end: {ends or 'no values'}.")
    box = Box(52, 12, WIDTH - 14, height - 44)
    values = [value for curve in curves for point in curve for value in (point.low, point.high)]
    least, ceiling = (0.1, 1.0) if percent else (0.02, math.inf)
    floor = -math.inf if any(value < 0 for value in values) else 0.0
    y = vertical(drawing, box, nice_ticks(*span(values, least, floor, ceiling), 6), percent)
    x = rounds(drawing, box, max((curve[-1].round for curve in curves if curve), default=1))
    looks = [Series(index) for index in range(len(groups))]
    for look, curve in zip(looks, curves, strict=True):
        if any(point.high > point.low for point in curve):
            upper = [(x(point.round), y(point.high)) for point in curve]
            lower = [(x(point.round), y(point.low)) for point in reversed(curve)]
            drawing.path(upper + lower, f"band {look.colour}{' faint' if len(groups) > FEW else ''}", closed=True)
    for look, curve in reversed(list(zip(looks, curves, strict=True))):
        if not curve:
            continue
        drawing.path([(x(p.round), y(p.mean)) for p in curve], f"line {look.colour}", dash=look.dash)
        every = math.ceil(len(curve) / MOST_MARKERS)
        for point in curve[look.index % every :: every]:
            tip = f"{groups[look.index].method}, round {point.round}: {point.mean:.3f}"
            drawing.marker(look.marker, x(point.round), y(point.mean), 3.4, look.mark("dot"), tip=tip)
    return drawing.markup()
