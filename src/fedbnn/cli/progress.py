"""Live progress in the terminal: round, client, accuracy, time left. Plain lines where there is no terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeft

from fedbnn.federation.evaluation import headline
from fedbnn.federation.loop import Round
from fedbnn.report.figures import duration, show
from fedbnn.runs.config import Config
from fedbnn.runs.observer import Observer
from fedbnn.runs.results import mean
from fedbnn.runs.standing import RECENT


class TerminalProgress(Observer):
    """One bar a run; a bar's unit is one client's turn in one round."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeft(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = TaskID(0)
        self.rounds = 0
        self.accuracy = ""
        self.times: list[float] = []

    def __enter__(self) -> "TerminalProgress":
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        self.title, self.rounds, self.accuracy, self.times = title, config.rounds, "", []
        total = clients + round(config.rounds * max(1, clients * config.participation))
        done = 0 if round_number < 0 else clients + round(round_number * max(1, clients * config.participation))
        self.task = self.bars.add_task(title, total=total, completed=done, status="warm-up")
        if round_number >= 0:
            self.note(f"{title}: going on after round {round_number}")

    def client_done(self, activity: str, round_number: int, client: int) -> None:
        where = "warm-up" if round_number == 0 else f"round {round_number}/{self.rounds}"
        doing = f"client {client}" if activity == "update" else f"scoring {client}"
        self.bars.update(self.task, advance=1 if activity == "update" else 0, status=f"{where}, {doing}{self.accuracy}")

    def round_done(self, record: Round) -> None:
        if record.scores:
            scores = [headline(variants).scores for variants in record.scores.values()]
            self.accuracy = _told(scores)
        if not self.console.is_terminal:
            self._line(record)

    def _line(self, record: Round) -> None:
        """A line a round, for a log: with scores if it was scored, and with the time left once a round tells it."""
        if record.number > 0:
            self.times = [*self.times, record.seconds][-RECENT:]
        ahead = self.rounds - record.number
        left = show(ahead * mean(self.times), duration) if self.times and ahead else ""
        scored = self.accuracy if record.scores else ""
        self.console.print(
            f"{self.title}: round {record.number}/{self.rounds}{scored}, {show(record.seconds, duration)}"
            f"{f', about {left} left' if left else ''}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def run_finished(self, result: dict[str, Any]) -> None:
        self.bars.update(self.task, completed=self.bars.tasks[self.task].total, status=self.accuracy.lstrip(", "))

    def note(self, text: str) -> None:
        self.console.print(f"note: {escape(text)}", style="yellow", highlight=False, soft_wrap=True)


def _told(scores: Sequence[Mapping[str, float]]) -> str:
    """The means over clients that a reader follows a run by."""
    if "crps" in scores[0]:
        crps, covered = (mean([one[name] for one in scores]) for name in ("crps", "coverage_90"))
        return f", CRPS {crps:.4g}, coverage {covered:.1%}"
    own, everything = (mean([one[name] for one in scores]) for name in ("own_class_accuracy", "all_class_accuracy"))
    return f", own {own:.1%}, all {everything:.1%}"
