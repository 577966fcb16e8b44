"""An end to the rounds once a score no longer gets better, judged on validation records alone.

Test records may not choose: the least of many scores on the same records is less than what others will see. So a run
that is to stop by itself is scored on validation records (`evaluation.split = "validation"`, `make_sites(split=...)`);
with the number of rounds that it found, run it again and score it on test records.
"""

import math
from collections.abc import Sequence

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean
from fedbnn.federation.engines import Site
from fedbnn.federation.evaluation import ALL_SCORES, MEASURES, SCORES, headline
from fedbnn.federation.loop import Round
from fedbnn.federation.regression_evaluation import REGRESSION_SCORES
from fedbnn.runs.config import Config
from fedbnn.runs.observer import Curve, Observer
from fedbnn.runs.results import summary


class EarlyStopping(Observer):
    """Asks for an end after `patience` scored rounds in a row that were no better, by more than `least`, than the best.

    Attributes:
        best_round: the round with the best score by now; -1 before any.
        best: that score, of the model that the method is judged by, over all clients.

    """

    stops = True

    def __init__(self, score: str = "nll", patience: int = 3, least: float = 0.0) -> None:
        if score not in ALL_SCORES:
            raise UserError(
                f"score = {score!r}{did_you_mean(str(score), ALL_SCORES)} (one of: {', '.join(ALL_SCORES)})"
            )
        if MEASURES[score].aim is not None:
            raise UserError(f"score = {score!r}: neither more nor less of it is better; choose another")
        if type(patience) is not int or patience < 1:
            raise UserError(f"patience = {patience!r}: rounds without a better score, a whole number from 1 up")
        if not isinstance(least, int | float) or not 0 <= least < math.inf:
            raise UserError(f"least = {least!r}: by how much a score must be better to count, a number from 0 up")
        self.score, self.patience, self.least = score, patience, float(least)
        self._forget()

    def _forget(self) -> None:
        self.best, self.best_round, self._since = math.nan, -1, 0

    def check(self, sites: Sequence[Site]) -> None:
        if any(site.split != "validation" for site in sites):
            raise UserError(
                "early stopping: the sites are scored on test records, which may not choose the number of rounds; set "
                "data.validation and evaluation.split = 'validation' (make_sites: split='validation')"
            )

        regression = any(site.client.regression for site in sites)
        if self.score not in (REGRESSION_SCORES if regression else SCORES):
            task = "regression" if regression else "classification"
            raise UserError(f"early stopping: score = {self.score!r} is not one of {task}")

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        self._forget()

    def earlier(self, curve: Curve) -> None:
        for number, value in zip(curve["round"], curve[self.score], strict=True):
            self._hear(int(number), value)

    def round_done(self, record: Round) -> None:
        if record.scores:
            value = summary([headline(variants) for variants in record.scores.values()])[self.score]
            self._hear(record.number, value)

    def _hear(self, number: int, value: float) -> None:
        sign = 1.0 if MEASURES[self.score].higher_is_better else -1.0
        if self.best_round < 0 or sign * (value - self.best) > self.least:
            self.best, self.best_round, self._since = value, number, 0
        else:
            self._since += 1

    def stop(self) -> str:
        if self._since < self.patience:
            return ""
        title = MEASURES[self.score].title
        return f"{title} on validation records was best in round {self.best_round} ({self.best:.4g})"
