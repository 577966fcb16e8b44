"""Tries candidates, one of every method in turn, each once: what is finished is in its run folders.

All methods of a search that is stopped early have had the same number of candidates, give or take one. The same search
goes on where it was: candidates that were drawn are drawn again, and judged by the results that are there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn.federation.evaluation import MEASURES, scores_among
from fedbnn.reproduce.cells import Cell
from fedbnn.reproduce.driver import Runner, Watcher, check
from fedbnn.reproduce.tuning.search import Settings, Tuning, scores_of
from fedbnn.reproduce.tuning.space import Sampler
from fedbnn.reproduce.write import make_folder
from fedbnn.runs.results import mean

Variants = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Trial:
    """A candidate and how it did: means over seeds."""

    settings: Settings
    cost: Sequence[float]  # by importance, the lower the better; infinite where a run failed
    variants: Variants  # the scores of each model


def cost(variants: Variants, aim: Sequence[str]) -> list[float]:
    """What a run is judged by, each score taken of the model that is best in it; the lower the better."""

    def lowest(score: str) -> float:
        values = [of[score] for of in variants.values()]
        return -max(values) if MEASURES[score].higher_is_better else min(values)

    found = [math.fsum(map(lowest, scores_of(one))) for one in aim]
    return [value if math.isfinite(value) else math.inf for value in found]


class Trials:
    """All trials of a search, by method."""

    def __init__(self, tuning: Tuning, folder: Path) -> None:
        self.tuning, self.folder = tuning, folder
        rows = list(tuning.contents.search)
        self.done: dict[str, list[Trial]] = {row: [] for row in rows}
        most, tried = tuning.contents.trials, {row: tuning.tried(row) for row in rows}
        self.samplers = {row: Sampler(tried[row].space) for row in rows if tried[row].space}
        self.listed = {row: tried[row].candidates[:most] or [{}] for row in rows}  # the defaults before what is drawn
        self.counts = {row: most if row in self.samplers else len(self.listed[row]) for row in rows}
        # Every candidate that is known parses, and the first stands for those that are not, in the time left.
        self.known = {row: [self._cells(row, n, one) for n, one in enumerate(self.listed[row], 1)] for row in rows}

    def best(self, row: str) -> Trial:
        """Of equals the first."""
        return min(self.done[row], key=lambda trial: list(trial.cost))

    def run(self, watcher: Watcher) -> Iterator[str]:
        """Try what has not been tried; after each candidate its problem, empty where there is none."""
        check([cell for of in self.known.values() for cells in of for cell in cells], "--methods leaves some out")
        make_folder(self.folder)
        turns = [(n, row) for n in range(max(self.counts.values())) for row in self.done if n < self.counts[row]]
        watcher.work_started(len(turns) * len(self.tuning.contents.seeds), 0)
        with Runner(watcher) as runner:
            for at, (number, row) in enumerate(turns):
                drawn = number >= len(self.listed[row])
                settings = self.samplers[row].ask() if drawn else self.listed[row][number]
                cells = self._cells(row, number + 1, settings)
                waiting = [cell for _, later in turns[at + 1 :] for cell in self.known[later][0]]
                problems = []
                for turn, cell in enumerate(cells):
                    problem = "" if runner.knows(cell) else runner.run(cell, [*cells[turn:], *waiting])
                    watcher.cell_finished(cell, problem)
                    problems += [problem] if problem else []
                trial = self._judged(row, settings, [] if problems else [cell.result() or {} for cell in cells])
                self.done[row].append(trial)
                if drawn:
                    self.samplers[row].tell(trial.cost[0])
                yield "; ".join(problems)

    def _cells(self, row: str, number: int, settings: Settings) -> list[Cell]:
        return self.tuning.cells(row, number, settings, self.folder / "runs")

    def _judged(self, row: str, settings: Settings, results: Sequence[Mapping[str, Any]]) -> Trial:
        aim = self.tuning.tried(row).aim
        costs = [cost(result["variants"], aim) for result in results] or [[math.inf] * len(aim)]
        first = results[0]["variants"] if results else {}
        names = [name for name in first if all(name in result["variants"] for result in results)]
        variants = {
            name: {
                score: mean([result["variants"][name][score] for result in results])
                for score in scores_among(first[name])
            }
            for name in names
        }
        return Trial(settings, [mean(values) for values in zip(*costs, strict=True)], variants)
