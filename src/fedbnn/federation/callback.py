"""Who hears of rounds while they are held, and may ask for an end: what `Federation.run` takes as `callbacks`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fedbnn.base.errors import UserError
from fedbnn.federation.engines import Site

if TYPE_CHECKING:
    from fedbnn.federation.loop import Round


class Callback:
    """Hears of rounds. This one says nothing: override what you need.

    What it does has no influence on any result, but for `stop`.
    """

    stops = False
    """Whether it may ask for an end: an engine that holds all its rounds refuses those that do."""

    def check(self, sites: Sequence[Site]) -> None:
        """Raise a UserError, before any work, for sites that it cannot be used with."""

    def client_done(self, activity: str, round_number: int, client: int) -> None:
        """A client is done with its "update" or "evaluate"."""

    def round_done(self, record: Round) -> None:
        """A round is finished; in a run folder it is on disk."""

    def stop(self) -> str:
        """Why no further round is wanted, asked after each round; empty to go on."""
        return ""


One = TypeVar("One", bound=Callback)


def several(given: object, kind: type[One], argument: str) -> tuple[One, ...]:
    """One or several of a kind as a tuple; a mistake is a line that names the argument."""
    found: list[One] = []
    for one in given if isinstance(given, Iterable) and not isinstance(given, str | kind) else (given,):
        if not isinstance(one, kind):
            name = one.__name__ if isinstance(one, type) else type(one).__name__
            hint = "an instance, not the class" if isinstance(one, type) and issubclass(one, kind) else "one"
            raise UserError(f"{argument}: {name!r} is no fedbnn.Observer; give {hint}, or several in a list")
        found.append(one)
    return tuple(found)
