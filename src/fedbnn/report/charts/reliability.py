"""Reliability diagram: accuracy against confidence, above the number of predictions in each bin."""

import numpy as np
from markupsafe import Markup

from fedbnn.federation.metrics import ReliabilityBins
from fedbnn.report.axes import Box, horizontal, vertical
from fedbnn.report.figures import plain, show
from fedbnn.report.svg import Drawing

QUARTERS = [0.0, 0.25, 0.5, 0.75, 1.0]
PLOT_TOP, PLOT_BOTTOM = 10.0, 210.0
"""A bar of accuracy a is 200 a units high."""


def reliability_diagram(bins: ReliabilityBins, method: str, width: float) -> Markup:
    errors = f"ECE {show(bins.ece, plain)}, MCE {show(bins.mce, plain)}"
    n = int(bins.count.sum())
    drawing = Drawing(width, 334, f"Reliability of {method}: {errors}, {n:,} predictions.")
    box = Box(50, PLOT_TOP, width - 20, PLOT_BOTTOM)
    strip = Box(box.left, PLOT_BOTTOM + 30, box.right, PLOT_BOTTOM + 84)
    y = vertical(drawing, box, QUARTERS, percent=True)
    height = vertical(drawing, strip, [0.0, float(max(bins.count.max(), 1))])
    x = horizontal(drawing, strip, QUARTERS, "confidence", percent=True)
    gaps = []
    for low, high, count, confidence, accuracy in zip(
        bins.edges, bins.edges[1:], bins.count, bins.confidence, bins.accuracy, strict=False
    ):
        left, wide = x(low) + 0.75, x(high) - x(low) - 1.5
        drawing.bar(left, height(count), wide, strip.bottom - height(count), "count", tip=f"{count:,} predictions")
        if np.isnan(accuracy):
            continue
        tip = (
            f"confidence {low:.0%} to {high:.0%}: {count:,} predictions, "
            f"mean confidence {confidence:.1%}, accuracy {accuracy:.1%}"
        )
        drawing.bar(left, y(accuracy), wide, box.bottom - y(accuracy), "accuracy", tip=tip)
        gaps.append((left, wide, y(accuracy), y(confidence)))
    drawing.line(x(0), y(0), x(1), y(1), "diagonal")
    for left, wide, reached, claimed in gaps:
        drawing.line(left + wide / 2, reached, left + wide / 2, claimed, "gap stem")
        drawing.line(left, claimed, left + wide, claimed, "gap")
    drawing.line(box.left, box.bottom, box.right, box.bottom, "axis")
    drawing.words(box.left + 6, box.top + 16, f"ECE {show(bins.ece, plain)}", "name halo")
    drawing.words(box.left + 6, box.top + 33, f"MCE {show(bins.mce, plain)}", "name halo")
    drawing.words(box.left, strip.top - 9, f"predictions a bin, {n:,} in all", "tick halo")
    return drawing.markup()
