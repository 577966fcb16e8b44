"""The numbers at the top of the page: cards for a run, one table for a comparison."""

import math
from dataclasses import dataclass

from fedbnn.report.figures import MISSING, Spread, Unit, duration, plain, share, show, size
from fedbnn.report.load import Group
from fedbnn.report.privacy import comparable, epsilon_text
from fedbnn.report.variants import NAMES, Variant, named


@dataclass(frozen=True)
class Metric:
    """A number of result.json: its field, its name, its meaning in a few words, and which way is better.

    `of_run` marks what a run costs, whichever of its models is scored.
    """

    field: str
    name: str
    meaning: str
    unit: Unit
    higher_is_better: bool = False
    of_run: bool = False


OWN = Metric("own_class_accuracy", "Own-class accuracy", "on the classes a client holds", share, True)
ALL = Metric("all_class_accuracy", "All-class accuracy", "also on classes it never saw", share, True)
NLL = Metric("nll", "NLL", "negative log-likelihood, in nats", plain)
ALL_NLL = Metric("all_class_nll", "All-class NLL", "also on classes it never saw", plain)
BRIER = Metric("brier", "Brier score", "squared error, from 0 to 2", plain)
ECE = Metric("ece", "ECE", "mean gap of confidence and accuracy", plain)
MCE = Metric("mce", "MCE", "greatest gap of any bin", plain)
UP = Metric("bytes_up_per_client_round", "Sent", "by a client in a round", size, of_run=True)
DOWN = Metric("bytes_down_per_client_round", "Received", "by a client in a round", size, of_run=True)
SECONDS = Metric("seconds", "Time", "for the whole run", duration, of_run=True)

FOREIGN_EPISTEMIC = Metric(
    "ood_auroc_epistemic", "Foreign AUROC", "by epistemic uncertainty; 0.5 is chance", plain, True
)
FOREIGN_TOTAL = Metric("ood_auroc_total", "Foreign AUROC, total", "by total uncertainty; 0.5 is chance", plain, True)

SCORES = (OWN, ALL, NLL, ALL_NLL, BRIER, ECE, MCE)
DETECTION = (FOREIGN_EPISTEMIC, FOREIGN_TOTAL)
COSTS = (UP, DOWN, SECONDS)
COLUMNS = (OWN, ALL, NLL, ECE, MCE, *COSTS)


@dataclass(frozen=True)
class Card:
    name: str
    text: str
    meaning: str


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A scored model of a method. What belongs to the run, not to the model, stands in the method's first row."""

    group: Group
    variant: Variant
    first: bool
    cells: list[Cell]

    @property
    def name(self) -> str:
        return NAMES[self.variant]

    @property
    def named(self) -> bool:
        return named(self.group.variants)


def over_seeds(group: Group, metric: Metric, variant: Variant) -> Spread:
    of = [result if metric.of_run else result.variants[variant] for result in group.results]
    return Spread.of([getattr(scores, metric.field) for scores in of])


def scores(group: Group) -> tuple[Metric, ...]:
    """The scores of a run: those of DETECTION only where models were asked about foreign inputs."""
    return (*SCORES, *_detection((group,)))


def columns(groups: tuple[Group, ...]) -> tuple[Metric, ...]:
    """The columns of a comparison."""
    return (*COLUMNS[: -len(COSTS)], *_detection(groups), *COSTS)


def _detection(groups: tuple[Group, ...]) -> tuple[Metric, ...]:
    results = [result for group in groups for result in group.results]
    return DETECTION if any(math.isfinite(result.ood_auroc_total) for result in results) else ()


def cards(group: Group) -> list[Card]:
    """The headline of a run, and its ε where it has one; a score that is not of the client's own model says so."""
    scored = group.variants[0]
    whose = "" if scored == "personal" else f"{NAMES[scored]} model: "
    found = [
        Card(
            metric.name,
            show(over_seeds(group, metric, scored), metric.unit),
            metric.meaning if metric.of_run else whose + metric.meaning,
        )
        for metric in (*scores(group), *COSTS)
    ]
    if (guarantee := group.guarantee) is not None:
        found.append(Card("Privacy ε", epsilon_text(guarantee), guarantee.terms))
    return found


def variant_rows(group: Group) -> list[list[str]]:
    """All scored models of a run side by side; nothing where there is only one."""
    if len(group.variants) == 1:
        return []
    return [
        [NAMES[variant], *(show(over_seeds(group, metric, variant), metric.unit) for metric in scores(group))]
        for variant in group.variants
    ]


def has_epsilon(groups: tuple[Group, ...]) -> bool:
    return any(group.guarantee is not None for group in groups)


def table(groups: tuple[Group, ...]) -> list[Row]:
    """A row for each scored model of each method: a cell a column, and ε where a method has one."""
    models = [(group, variant) for group in groups for variant in group.variants]
    cells = [_column(models, metric) for metric in columns(groups)]
    if has_epsilon(groups):
        cells.append(_epsilon(models))
    return [
        Row(group, variant, variant == group.variants[0], [column[row] for column in cells])
        for row, (group, variant) in enumerate(models)
    ]


def _column(models: list[tuple[Group, Variant]], metric: Metric) -> list[Cell]:
    """Best are all that read the same as the best mean; none, where every model reads the same."""
    spreads = [
        None if metric.of_run and variant != group.variants[0] else over_seeds(group, metric, variant)
        for group, variant in models
    ]
    means = [spread.mean for spread in spreads if spread is not None and math.isfinite(spread.mean)]
    best = show((max if metric.higher_is_better else min)(means), metric.unit) if means else MISSING
    telling = len({show(mean, metric.unit) for mean in means}) > 1
    return [
        Cell("")
        if spread is None
        else Cell(show(spread, metric.unit), telling and show(spread.mean, metric.unit) == best)
        for spread in spreads
    ]


def _epsilon(models: list[tuple[Group, Variant]]) -> list[Cell]:
    """Best are all that read the same as the smallest ε, if not all do and all speak of the same unit and δ."""
    given = {group.method: group.guarantee for group, _ in models}
    finite = [one for one in given.values() if one is not None and math.isfinite(one.epsilon)]
    telling = comparable(list(given.values())) and len({epsilon_text(one) for one in finite}) > 1
    least = epsilon_text(min(finite, key=lambda one: one.epsilon)) if finite else MISSING
    cells = []
    for group, variant in models:
        guarantee = given[group.method]
        if variant != group.variants[0]:
            cells.append(Cell(""))
        else:
            text = epsilon_text(guarantee)
            cells.append(Cell(text, telling and text == least))
    return cells
