"""What the text of a cell says: a number, yes or no, a day. NaN is a cell that says nothing of the kind."""

import math
import re
from collections.abc import Callable
from datetime import date, datetime

from fedbnn.data.csv_source import number

NO = frozenset({"0", "0.0", "false", "no", "n", "f", "nein", "falsch", "non"})
YES = frozenset({"1", "1.0", "true", "yes", "y", "t", "ja", "j", "wahr", "oui"})
EPOCH = date(2000, 1, 1)
GERMAN = "%d.%m.%Y"
WHOLE = re.compile(r"^([+-]?[0-9]+)[.,]0+$")

Reader = Callable[[str], float]


def numbers(decimal: str) -> Reader:
    def read(text: str) -> float:
        value = number(text, decimal)
        return math.nan if value is None else value

    return read


def booleans(words: tuple[str, ...] = ()) -> Reader:
    """0 for no and 1 for yes; of two `words`, the first is no."""
    no, yes = ({words[0].lower()}, {words[1].lower()}) if words else (NO, YES)

    def read(text: str) -> float:
        word = text.lower()
        return 0.0 if word in no else 1.0 if word in yes else math.nan

    return read


def category(text: str) -> str:
    """A code that some program has turned into 2.0 is 2 all the same; 02 is another."""
    return WHOLE.sub(r"\1", text)


def days(layout: str = "") -> Reader:
    """Days since 2000-01-01; a time of day is left out."""

    def read(text: str) -> float:
        for parse in (_strictly(layout),) if layout else (datetime.fromisoformat, _strictly(GERMAN)):
            try:
                return float((parse(text).date() - EPOCH).days)
            except (ValueError, OverflowError):
                continue
        return math.nan

    return read


def _strictly(layout: str) -> Callable[[str], datetime]:
    return lambda text: datetime.strptime(text, layout)


def day_of_year(year: float, month: int, day: int) -> float:
    return float((date(int(year), month, day) - EPOCH).days)


def month_of(day: float) -> int:
    return date.fromordinal(EPOCH.toordinal() + round(day)).month
