"""Accuracy of the most certain predictions, against the share that is answered: one line a method."""

from markupsafe import Markup

from fedbnn.federation.metrics import RankedCounts
from fedbnn.report.axes import Box, horizontal, span, vertical
from fedbnn.report.figures import share, show
from fedbnn.report.series import Series
from fedbnn.report.svg import Drawing
from fedbnn.report.ticks import nice_ticks

WIDTH, HEIGHT = 440.0, 300.0
QUARTERS = [0.0, 0.25, 0.5, 0.75, 1.0]


def selective_curves(curves: list[tuple[str, Series, RankedCounts]]) -> Markup:
    """Those of methods by name; the mark at half of the records and the one at all of them are told."""
    told = "; ".join(
        f"{name}: {show(of.accuracy[len(of.accuracy) // 2 - 1], share)} on the more certain half, "
        f"{show(of.accuracy[-1], share)} on all"
        for name, _, of in curves
    )
    drawing = Drawing(WIDTH, HEIGHT, f"Accuracy against the share of records that is answered. {told}.")
    box = Box(52, 12, WIDTH - 14, HEIGHT - 44)
    values = [float(value) for _, _, of in curves for value in of.accuracy]
    y = vertical(drawing, box, nice_ticks(*span(values, 0.1, 0.0, 1.0), 6), percent=True)
    x = horizontal(drawing, box, QUARTERS, "share of records answered, the most certain first", percent=True)
    for name, look, of in reversed(curves):
        points = list(zip(of.coverage, of.accuracy, strict=True))
        drawing.path([(x(at), y(value)) for at, value in points], f"line {look.colour}", dash=look.dash)
        for at, value in points[1::2]:
            tip = f"{name}: {value:.1%} of the most certain {at:.0%} are right"
            drawing.marker(look.marker, x(at), y(value), 3.4, look.mark("dot"), tip=tip)
    return drawing.markup()
