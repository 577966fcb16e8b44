"""The live progress of `fedbnn reproduce`: a bar over cells with the time left, below it that of the running one."""

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedbnn.cli.progress import TerminalProgress
from fedbnn.federation.loop import Round
from fedbnn.report.figures import duration, show
from fedbnn.reproduce.cells import Cell
from fedbnn.reproduce.driver import Watcher


class CellProgress(TerminalProgress, Watcher):
    """Two bars on a terminal, a line a cell elsewhere."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.cells = Progress(
            TextColumn("[bold]all cells"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.total = self.done = 0
        self.label = ""
        self.all = self.cells.add_task("", total=None, left="")
        self.live = Live(Group(self.cells, self.bars), console=console, refresh_per_second=4)

    def __enter__(self) -> "CellProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def work_started(self, cells: int, done: int) -> None:
        self.total, self.done = cells, done
        self.cells.update(self.all, total=cells, completed=done)
        if done:
            self.note(f"{done} of {cells} cells are finished already")

    def cell_started(self, cell: Cell, left: float | None) -> None:
        self._clear()
        self.label = cell.title
        words = "" if left is None else f"about {show(left, duration)} left"
        self.cells.update(self.all, left=words)
        if not self.console.is_terminal:
            self._say(f"cell {self.done + 1} of {self.total}: {cell.title}{f'; {words}' if words else ''}")

    def cell_finished(self, cell: Cell, problem: str = "") -> None:
        self._clear()
        self.done += 1
        self.cells.update(self.all, completed=self.done)
        if problem:
            self.console.print(f"failed: {escape(problem)}", style="red", highlight=False, soft_wrap=True)

    def round_done(self, record: Round) -> None:
        """A line a round, as for a single run, would bury what matters."""
        if self.console.is_terminal:
            super().round_done(record)

    def run_finished(self, result: dict[str, Any]) -> None:
        if "crps" in result:
            scores = f"CRPS {result['crps']:.4g}"
        else:
            scores = f"own {result['own_class_accuracy']:.1%}, all {result['all_class_accuracy']:.1%}"
        self._say(f"{self.label}: {scores}, {show(result['seconds'], duration)}")

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _clear(self) -> None:
        for task in self.bars.task_ids:
            self.bars.remove_task(task)
