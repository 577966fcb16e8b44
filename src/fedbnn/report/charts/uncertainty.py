"""Uncertainty of right predictions (upwards) against wrong ones (downwards), each as shares of its own kind."""

from markupsafe import Markup

from fedbnn.federation.metrics import UncertaintyHistogram
from fedbnn.federation.metrics.predictions import Floats
from fedbnn.report.axes import Box, horizontal
from fedbnn.report.figures import plain, show
from fedbnn.report.svg import Drawing, Scale
from fedbnn.report.ticks import nice_ticks, tick_text

HEIGHT = 226.0
QUARTERS = [0.0, 0.25, 0.5, 0.75, 1.0]


def shares(histogram: UncertaintyHistogram) -> tuple[Floats, Floats]:
    """Right and wrong counts, each divided by its own sum (zero where there are none)."""
    right, wrong = histogram.right, histogram.wrong
    return right / max(int(right.sum()), 1), wrong / max(int(wrong.sum()), 1)


def uncertainty_mirror(histogram: UncertaintyHistogram, kind: str, method: str, most: float, width: float) -> Markup:
    """The vertical axis reaches `most` both ways, so that panels side by side can be compared."""
    right, wrong = int(histogram.right.sum()), int(histogram.wrong.sum())
    auroc = f"AUROC {show(histogram.auroc, plain)}"
    drawing = Drawing(
        width,
        HEIGHT,
        f"{kind} uncertainty of {method}: {right:,} right and {wrong:,} wrong predictions, {auroc}.",
    )
    box = Box(50, 8, width - 20, HEIGHT - 42)
    middle = (box.top + box.bottom) / 2
    up, down = shares(histogram)
    ticks = nice_ticks(0, max(most, 0.05), 4)
    y = Scale(0, ticks[-1], middle, box.top)
    for tick, text in zip(ticks, tick_text(ticks, percent=True), strict=True):
        for position in dict.fromkeys((y(tick), 2 * middle - y(tick))):
            drawing.line(box.left, position, box.right, position, "gridline")
            drawing.words(box.left - 6, position + 4, text, "tick", "end")
    x = horizontal(drawing, box, QUARTERS, f"{kind.lower()} uncertainty, share of its maximum", percent=True)
    for low, high, above, below in zip(histogram.edges, histogram.edges[1:], up, down, strict=False):
        left, wide = x(low) + 0.75, x(high) - x(low) - 1.5
        place = f"uncertainty {low:.0%} to {high:.0%}"
        if above:
            tip = f"{place}: {above:.1%} of the right predictions"
            drawing.bar(left, y(above), wide, middle - y(above), "right", tip=tip)
        if below:
            tip = f"{place}: {below:.1%} of the wrong predictions"
            drawing.bar(left, middle, wide, middle - y(below), "wrong", tip=tip)
    drawing.line(box.left, middle, box.right, middle, "axis")
    drawing.words(box.right, box.top + 14, f"right: {right:,}", "name halo", "end")
    drawing.words(box.right, box.bottom - 8, f"wrong: {wrong:,}", "name halo", "end")
    drawing.words(box.right, box.top + 31, auroc, "tick halo", "end")
    return drawing.markup()
