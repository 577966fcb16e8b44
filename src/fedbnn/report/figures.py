"""Numbers as a reader wants them: percentages, byte counts, durations, mean ± standard deviation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedbnn.report.table import Cell

MISSING = "\N{EN DASH}"
UNSCORED = "unscored"
"""Of a client that has no records of its own to be scored on."""


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


def compact(value: float) -> tuple[float, int, str]:
    """Bytes in three digits and a letter, as narrow as a score: 108, 16.0k, 489k, 1.05M."""
    units = ((1.0, ""), (1e3, "k"), (1e6, "M"))
    worth, sign = next((unit for unit in units if value / unit[0] < 999.5), (1e9, "G"))
    scaled = value / worth
    return worth, 0 if not sign or scaled >= 99.95 else 1 if scaled >= 9.995 else 2, sign


def percent(_: float) -> tuple[float, int, str]:
    """A share whose sign stands in the heading."""
    return 0.01, 1, ""


def target(value: float) -> tuple[float, int, str]:
    """In the target's own unit, whatever that is: at least four digits that tell."""
    digits = math.floor(math.log10(abs(value))) if math.isfinite(value) and value else 0
    return 1.0, min(max(3 - digits, 0), 12), ""


UNITS: dict[str, Unit] = {"share": share, "plain": plain, "target": target, "bytes": size, "seconds": duration}
COMPACT: dict[str, Unit] = UNITS | {"bytes": compact, "seconds": lambda _: (1.0, 1, "")}
"""Where room is scarce and headings name the unit."""


def cell(value: float | Spread, unit: Unit, *, best: bool = False, even_zero: bool = False) -> Cell:
    """The value in its unit; ± where seeds disagree, or with `even_zero` where there are several; or a dash."""
    mean, deviation = (value.mean, value.deviation) if isinstance(value, Spread) else (value, math.nan)
    if not math.isfinite(mean):
        return Cell(MISSING)
    worth, decimals, sign = unit(mean)
    told = not math.isnan(deviation) and (even_zero or deviation > 1e-12 * abs(mean))
    decimals = max(decimals, 1) if told else decimals
    text, spread = (f"{_in(number, worth):,.{decimals}f}" for number in (mean, deviation))
    return Cell(text, spread if told else "", sign, best)


def _in(value: float, worth: float) -> float:
    """In units of this worth; a share is multiplied, not divided, so that it rounds as Python's own percentages do."""
    return value * (1 / worth) if worth < 1 else value / worth


def show(value: float | Spread, unit: Unit) -> str:
    """The value in its unit: "95.0%", "95.0 ± 0.4%" where seeds disagree, or a dash where there is none."""
    return str(cell(value, unit))


def best_of(means: Sequence[float], unit: Unit, higher_is_better: bool, aim: float | None = None) -> list[bool]:
    """Which read the same as the best of the numbers; none of them where all read the same.

    With an aim, the best is the one nearest to it.
    """
    texts = [show(mean, unit) for mean in means]
    finite = [mean for mean in means if math.isfinite(mean)]
    if len({text for text in texts if text != MISSING}) < 2:
        return [False] * len(means)
    nearest = None if aim is None else min(finite, key=lambda mean: abs(mean - aim))
    best = show((max if higher_is_better else min)(finite) if nearest is None else nearest, unit)
    return [text == best for text in texts]


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 client", "20 clients"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(words: Sequence[str]) -> str:
    """Words in a sentence: "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
