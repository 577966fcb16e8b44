"""The hint at the end of an error message: the known name closest to what was typed."""

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
