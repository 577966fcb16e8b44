"""What error messages are made of: hints at the known name closest to what was typed, lists, and one line in all."""

import difflib
from collections.abc import Iterable

LISTED = 20


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'digits'?`, or nothing where no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def listing(names: Iterable[str]) -> str:
    """The names in quotes, cut short where a wide table would fill the screen."""
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return ", ".join(shown[:LISTED]) + more


def printable(text: str) -> str:
    """The same without signs that a terminal would obey, but for line feeds: names may come from anybody's files."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def one_line(text: str, most: int) -> str:
    """At most so many signs, none of which a terminal would obey."""
    line = "".join(sign if sign.isprintable() else " " for sign in text[: most + 1])
    return line if len(line) <= most else line[: most - 4] + " ..."
