"""Do predicted distributions hold what they claim? Coverage of central intervals, and where targets lie in them."""

from markupsafe import Markup

from fedbnn.federation.metrics.regression import PitCounts
from fedbnn.report.axes import Box, horizontal, vertical
from fedbnn.report.series import Series
from fedbnn.report.svg import Drawing
from fedbnn.report.ticks import nice_ticks

HEIGHT = 250.0
QUARTERS = [0.0, 0.25, 0.5, 0.75, 1.0]


def coverage_curve(pit: PitCounts, method: str, look: Series, width: float) -> Markup:
    """The share of targets within central intervals, against the share that they should hold."""
    levels, held = (values.tolist() for values in pit.coverage)
    told = ", ".join(f"{have:.0%} in {want:.0%}" for want, have in zip(levels, held, strict=True) if want in (0.5, 0.9))
    drawing = Drawing(width, HEIGHT, f"Coverage of central intervals of {method}: {told}.")
    box = Box(50, 10, width - 20, HEIGHT - 44)
    y = vertical(drawing, box, QUARTERS, percent=True)
    x = horizontal(drawing, box, QUARTERS, "share that an interval should hold", percent=True)
    drawing.line(x(0), y(0), x(1), y(1), "diagonal")
    drawing.path([(x(at), y(value)) for at, value in zip(levels, held, strict=True)], f"line {look.colour}")
    for want, have in zip(levels, held, strict=True):
        tip = f"central {want:.0%} intervals hold {have:.1%}"
        drawing.marker(look.marker, x(want), y(have), 3.4, look.mark("dot"), tip=tip)
    return drawing.markup()


def pit_histogram(pit: PitCounts, method: str, width: float) -> Markup:
    """The share of targets in each twentieth of their predicted distributions; the line is where all should be."""
    n, shares = int(pit.count.sum()), pit.share.tolist()
    drawing = Drawing(width, HEIGHT, f"Where targets lie in what {method} predicts: {n:,} targets in 20 bins.")
    box = Box(50, 10, width - 20, HEIGHT - 44)
    y = vertical(drawing, box, nice_ticks(0.0, max(*shares, 0.1) if n else 0.1, 5), percent=True)
    x = horizontal(drawing, box, QUARTERS, "place in its distribution", percent=True)
    for low, high, part in zip(pit.edges, pit.edges[1:], shares if n else (), strict=False):
        left, wide = x(low) + 0.75, x(high) - x(low) - 1.5
        drawing.bar(left, y(part), wide, box.bottom - y(part), "accuracy", tip=f"{low:.0%} to {high:.0%}: {part:.1%}")
    drawing.line(box.left, y(1 / len(pit.count)), box.right, y(1 / len(pit.count)), "diagonal")
    return drawing.markup()
