"""Who hears how a run goes on."""

from typing import Any

from fedbnn.federation.loop import Round
from fedbnn.runs.config import Config


class Observer:
    """Hears how work goes on. This one says nothing; the command line shows a progress bar."""

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        """A run begins, or goes on after this round (-1: from the start)."""

    def client_done(self, activity: str, round_number: int, client: int) -> None:
        """A client has been updated or evaluated."""

    def round_done(self, record: Round) -> None:
        """A round is finished and on disk."""

    def run_finished(self, result: dict[str, Any]) -> None:
        """A run is finished."""

    def note(self, text: str) -> None:
        """Something the user should know."""
