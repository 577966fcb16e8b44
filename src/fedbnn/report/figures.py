"""Numbers as a reader wants them: percentages, byte counts, durations, mean ± standard deviation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MISSING = "\N{EN DASH}"


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation is nan below two finite values."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return cls(math.nan, math.nan)
        mean = math.fsum(finite) / len(finite)
        if len(finite) < 2:
            return cls(mean, math.nan)
        return cls(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in finite) / (len(finite) - 1)))


Unit = Callable[[float], tuple[float, int, str]]
"""From a value to (what one unit is worth, decimals to show, the unit's sign)."""


def share(_: float) -> tuple[float, int, str]:
    return 0.01, 1, "%"


def plain(_: float) -> tuple[float, int, str]:
    return 1.0, 3, ""


def size(value: float) -> tuple[float, int, str]:
    """Decimal units: 1 kB is 1000 bytes."""
    for worth, sign in ((1.0, " B"), (1e3, " kB"), (1e6, " MB")):
        if round(value / worth, 1) < 1000:
            return worth, 0 if worth == 1.0 and value == int(value) else 1, sign
    return 1e9, 1, " GB"


def duration(value: float) -> tuple[float, int, str]:
    for worth, sign in ((1.0, " s"), (60.0, " min")):
        if round(value / worth, 1) < 100:
            return worth, 1, sign
    return 3600.0, 1, " h"


def show(value: float | Spread, unit: Unit) -> str:
    """The value in its unit: "95.0%", "95.0 ± 0.4%" where seeds disagree, or a dash where there is none."""
    mean, deviation = (value.mean, value.deviation) if isinstance(value, Spread) else (value, math.nan)
    if not math.isfinite(mean):
        return MISSING
    worth, decimals, sign = unit(mean)
    if not deviation > 1e-12 * abs(mean):
        return f"{mean / worth:,.{decimals}f}{sign}"
    decimals = max(decimals, 1)
    return f"{mean / worth:,.{decimals}f} ± {deviation / worth:,.{decimals}f}{sign}"


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 client", "20 clients"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(words: Sequence[str]) -> str:
    """Words in a sentence: "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
