"""A plotting area with two axes: grid lines, round ticks, titles."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedbnn.report.svg import Drawing, Scale
from fedbnn.report.ticks import nice_ticks, tick_text

TICK_GAP = 6.0


@dataclass(frozen=True)
class Box:
    """The plotting area inside a drawing."""

    left: float
    top: float
    right: float
    bottom: float


def span(
    values: Iterable[float], least: float, floor: float = -math.inf, ceiling: float = math.inf
) -> tuple[float, float]:
    """Smallest and greatest finite value, moved apart to at least `least` but kept in floor..ceiling."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, least)
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
        shift = max(0.0, floor - low) - max(0.0, high - ceiling)
        low, high = low + shift, high + shift
    return max(low, floor), min(high, ceiling)


def horizontal(
    drawing: Drawing,
    box: Box,
    ticks: list[float],
    title: str,
    *,
    percent: bool = False,
    grid: bool = False,
    low: float | None = None,
    high: float | None = None,
    texts: Sequence[str] = (),
) -> Scale:
    """Draws the x axis under `box`; it runs from low to high, or else from the first tick to the last.

    `texts` stand at the ticks in place of their numbers.
    """
    scale = Scale(ticks[0] if low is None else low, ticks[-1] if high is None else high, box.left, box.right)
    drawing.line(box.left, box.bottom, box.right, box.bottom, "axis")
    for tick, text in zip(ticks, texts or tick_text(ticks, percent), strict=True):
        if scale.low <= tick <= scale.high:
            x = scale(tick)
            if grid:
                drawing.line(x, box.top, x, box.bottom, "gridline")
            drawing.line(x, box.bottom, x, box.bottom + 4, "axis")
            drawing.words(x, box.bottom + 17, text, "tick", "middle")
    if title:
        drawing.words((box.left + box.right) / 2, box.bottom + 34, title, "label", "middle")
    return scale


def vertical(drawing: Drawing, box: Box, ticks: list[float], percent: bool = False) -> Scale:
    """Draws the y axis left of `box`, from the first tick at the bottom to the last at the top."""
    scale = Scale(ticks[0], ticks[-1], box.bottom, box.top)
    for tick, text in zip(ticks, tick_text(ticks, percent), strict=True):
        y = scale(tick)
        drawing.line(box.left, y, box.right, y, "gridline")
        drawing.words(box.left - TICK_GAP, y + 4, text, "tick", "end")
    return scale


def rounds(drawing: Drawing, box: Box, last: int) -> Scale:
    """The x axis of everything that is shown against rounds, from 0 to the last one."""
    end = max(last, 1)
    return horizontal(drawing, box, nice_ticks(0, end, 7, integer=True), "round", low=0, high=end)
