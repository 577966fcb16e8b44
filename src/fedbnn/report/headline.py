"""The numbers at the top of the page: cards for a run, one table for a comparison."""

import math
from dataclasses import dataclass

from fedbnn.report.figures import MISSING, Spread, Unit, duration, plain, share, show, size
from fedbnn.report.load import Group


@dataclass(frozen=True)
class Metric:
    """A number of result.json: its field, its name, its meaning in a few words, and which way is better."""

    field: str
    name: str
    meaning: str
    unit: Unit
    higher_is_better: bool = False


OWN = Metric("own_class_accuracy", "Own-class accuracy", "on the classes a client holds", share, True)
ALL = Metric("all_class_accuracy", "All-class accuracy", "also on classes it never saw", share, True)
NLL = Metric("nll", "NLL", "negative log-likelihood, in nats", plain)
ALL_NLL = Metric("all_class_nll", "All-class NLL", "also on classes it never saw", plain)
BRIER = Metric("brier", "Brier score", "squared error, from 0 to 2", plain)
ECE = Metric("ece", "ECE", "mean gap of confidence and accuracy", plain)
MCE = Metric("mce", "MCE", "greatest gap of any bin", plain)
UP = Metric("bytes_up_per_client_round", "Sent", "by a client in a round", size)
DOWN = Metric("bytes_down_per_client_round", "Received", "by a client in a round", size)
SECONDS = Metric("seconds", "Time", "for the whole run", duration)

CARDS = (OWN, ALL, NLL, ALL_NLL, BRIER, ECE, MCE, UP, DOWN, SECONDS)
COLUMNS = (OWN, ALL, NLL, ECE, MCE, UP, DOWN, SECONDS)


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool


def over_seeds(group: Group, metric: Metric) -> Spread:
    return Spread.of([getattr(result, metric.field) for result in group.results])


def cards(group: Group) -> list[tuple[Metric, str]]:
    return [(metric, show(over_seeds(group, metric), metric.unit)) for metric in CARDS]


def table(groups: tuple[Group, ...]) -> list[tuple[Group, list[Cell]]]:
    """One row a method, one cell a column of COLUMNS."""
    columns = [_column(groups, metric) for metric in COLUMNS]
    return [(group, [column[row] for column in columns]) for row, group in enumerate(groups)]


def _column(groups: tuple[Group, ...], metric: Metric) -> list[Cell]:
    """Best are all that read the same as the best mean; none, where every method reads the same."""
    spreads = [over_seeds(group, metric) for group in groups]
    means = [spread.mean for spread in spreads if math.isfinite(spread.mean)]
    best = show((max if metric.higher_is_better else min)(means), metric.unit) if means else MISSING
    reads = [show(spread.mean, metric.unit) for spread in spreads]
    telling = len(set(reads) - {MISSING}) > 1
    return [
        Cell(show(spread, metric.unit), telling and read == best) for spread, read in zip(spreads, reads, strict=True)
    ]
