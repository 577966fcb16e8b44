"""Who hears how a run goes on; and several who do, as one."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbnn.federation.callback import Callback, several
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import Round
from fedbnn.runs.config import Config

Curve = Mapping[str, Sequence[float]]
"""Scores of each evaluated round, as `results.curve` gives them: a list for `round` and for each score."""


class Observer(Callback):
    """Hears how work goes on. This one says nothing: override what you need; the command line shows a progress bar.

    `fedbnn.run(config, out, observer=...)` calls all of it, `Federation.run(rounds, callbacks=[...])` what a `Callback`
    has: `check`, `client_done`, `round_done` and `stop`.
    """

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        """A run begins, or goes on after this round (-1: from the start)."""

    def earlier(self, curve: Curve) -> None:
        """What a run that goes on has scored up to now: comes after `run_started`, and only then."""

    def run_finished(self, result: dict[str, Any]) -> None:
        """A run is finished."""

    def note(self, text: str) -> None:
        """Something the user should know."""


class Observers(Observer):
    """Several as one: each hears everything, in their order; the first that asks for an end gets it."""

    def __init__(self, given: object = ()) -> None:
        self.all = several(given if given is not None else (), Observer, "observer")
        self.stops = any(one.stops for one in self.all)

    def check(self, sites: Sequence[Site]) -> None:
        for one in self.all:
            one.check(sites)

    def client_done(self, activity: str, round_number: int, client: int) -> None:
        for one in self.all:
            one.client_done(activity, round_number, client)

    def round_done(self, record: Round) -> None:
        for one in self.all:
            one.round_done(record)

    def stop(self) -> str:
        return next(filter(None, (one.stop() for one in self.all)), "")

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        for one in self.all:
            one.run_started(title, config, clients, round_number)

    def earlier(self, curve: Curve) -> None:
        for one in self.all:
            one.earlier(curve)

    def run_finished(self, result: dict[str, Any]) -> None:
        for one in self.all:
            one.run_finished(result)

    def note(self, text: str) -> None:
        for one in self.all:
            one.note(text)
