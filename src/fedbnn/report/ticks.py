"""Round numbers for an axis."""

import math
from itertools import pairwise


def nice_ticks(low: float, high: float, count: int = 5, integer: bool = False) -> list[float]:
    """About `count` evenly spaced round numbers of which the first is <= low and the last is >= high.

    The step is 1, 2, 2.5 or 5 times a power of ten (Heckbert 1990), so a range inside [0, 1] keeps its ticks
    inside [0, 1]. With `integer`, steps are whole numbers. A range too narrow to tell its ends apart is widened.
    """
    span = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-12)
    if integer:
        span = max(span, 1.0)
    if span > high - low:
        low, high = low - (span - (high - low)) / 2, high + (span - (high - low)) / 2
    step = _step(span / max(count - 1, 1))
    if integer:
        step = max(1.0, step if step == math.floor(step) else 2 * step)
    slack = 1e-9
    first, last = math.floor(low / step + slack), math.ceil(high / step - slack)
    return [_clean(index * step, step) for index in range(first, max(last, first + 1) + 1)]


def tick_text(ticks: list[float], percent: bool = False) -> list[str]:
    """All ticks of an axis with the same number of decimals, just as many as their step needs."""
    scale = 100.0 if percent else 1.0
    values = [tick * scale for tick in ticks]
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    decimals = next((d for d in range(12) if abs(round(step, d) - step) < step * 1e-6), 12)
    return [f"{value:,.{decimals}f}{'%' if percent else ''}" for value in values]


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


def _clean(value: float, step: float) -> float:
    """Without the rounding dust of index * step: 0.30000000000000004 becomes 0.3."""
    return round(value, max(0, 2 - math.floor(math.log10(step)))) + 0.0
