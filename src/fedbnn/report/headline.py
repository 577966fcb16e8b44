"""The numbers at the top of the page: cards for a run, one table for a comparison."""

import math
from dataclasses import dataclass

from fedbnn.federation.evaluation import COSTS, MEASURES, SCORES, SOMETIMES
from fedbnn.federation.regression_evaluation import REGRESSION_SCORES
from fedbnn.report.figures import COMPACT, MISSING, UNITS, Spread, best_of, cell, show
from fedbnn.report.load import Group
from fedbnn.report.privacy import comparable, epsilon_text
from fedbnn.report.table import Cell, Column, Kind, Row, Table
from fedbnn.report.variants import NAMES, Variant, named

COMPARED = ("own_class_accuracy", "all_class_accuracy", "nll", "ece", "mce")
COMPARED_IN_REGRESSION = ("rmse", "nll", "crps", "coverage_90", "width_90")

Model = tuple[Group, Variant]
"""A scored model of a method."""


@dataclass(frozen=True)
class Card:
    name: str
    text: str
    meaning: str


def over_seeds(group: Group, name: str, variant: Variant) -> Spread:
    scored = [result if name in COSTS else result.variants[variant] for result in group.results]
    return Spread.of([getattr(scores, name) for scores in scored])


def scores(groups: tuple[Group, ...], *, compared: bool = False) -> tuple[str, ...]:
    """The scores that are told: those of SOMETIMES only where a run has them."""
    results = [result for group in groups for result in group.results]
    of = _compared(groups) if compared else REGRESSION_SCORES if results[0].regression else SCORES
    asked = (name for name in SOMETIMES if any(math.isfinite(getattr(one, name, math.nan)) for one in results))
    return (*of, *asked)


def _compared(groups: tuple[Group, ...]) -> tuple[str, ...]:
    """Those that a comparison has room for."""
    return COMPARED_IN_REGRESSION if groups[0].results[0].regression else COMPARED


def meaning(name: str, groups: tuple[Group, ...]) -> str:
    """Of a score, for these runs: nobody speaks of classes that a client never saw where each holds all of them."""
    if name.startswith("all_class") and all(one.everyone_holds_all for group in groups for one in group.classified):
        return "on all records that are scored"
    return MEASURES[name].meaning


def cards(group: Group) -> list[Card]:
    """The headline of a run, and its ε where it has one; a score that is not of the client's own model says so."""
    scored = group.variants[0]
    whose = "" if scored == "personal" else f"{NAMES[scored]} model: "
    shown = []
    for name in (*scores((group,)), *COSTS):
        measure = MEASURES[name]
        text = show(over_seeds(group, name, scored), UNITS[measure.unit])
        shown.append(Card(measure.heading, text, ("" if name in COSTS else whose) + meaning(name, (group,))))
    if (guarantee := group.guarantee) is not None:
        shown.append(Card("Privacy ε", epsilon_text(guarantee), guarantee.terms))
    return shown


def models(group: Group) -> Table | None:
    """All scored models of a run side by side; nothing where there is only one."""
    if len(group.variants) == 1:
        return None
    names = scores((group,))
    rows = [
        Row([Cell(NAMES[one]), *(cell(over_seeds(group, name, one), UNITS[MEASURES[name].unit]) for name in names)])
        for one in group.variants
    ]
    return Table([Column("Model", words=True), *(_heading(name, (group,)) for name in names)], rows)


def comparison(groups: tuple[Group, ...], *, short: bool = False) -> Table:
    """A row for each scored model of each method, and ε where a method has one.

    What belongs to the run, not to the model, stands in the method's first row. `short` is for the terminal.
    """
    compared = [(group, variant) for group in groups for variant in group.variants]
    names = (*(_compared(groups) if short else scores(groups, compared=True)), *COSTS)
    columns = [Column("Method", words=True, brief="method"), *(_heading(name, groups) for name in names)]
    cells = [[_label(model) for model in compared], *(_column(compared, name, short) for name in names)]
    if not short and len({len(group.runs) for group in groups}) > 1:
        columns.insert(1, Column("Seeds"))
        cells.insert(1, [Cell(str(len(group.runs)) if _first(group, one) else "") for group, one in compared])
    if any(group.guarantee is not None for group in groups):
        columns.append(Column("ε", meaning="differential privacy of what clients sent"))
        cells.append(_epsilon(compared))
    kinds: list[Kind] = ["" if _first(*model) else "more" for model in compared]
    return Table(columns, [Row([*of], kind) for of, kind in zip(zip(*cells, strict=True), kinds, strict=True)])


def _heading(name: str, groups: tuple[Group, ...]) -> Column:
    measure = MEASURES[name]
    return Column(measure.heading, meaning=meaning(name, groups), brief=measure.brief or measure.title)


def _first(group: Group, variant: Variant) -> bool:
    return variant == group.variants[0]


def _label(model: Model) -> Cell:
    group, variant = model
    return Cell(group.method, model=NAMES[variant] if named(group.variants) else "")


def _column(compared: list[Model], name: str, short: bool) -> list[Cell]:
    measure = MEASURES[name]
    unit = (COMPACT if short else UNITS)[measure.unit]
    told = [name not in COSTS or _first(*model) for model in compared]
    spreads = [over_seeds(group, name, variant) for group, variant in compared]
    means = [spread.mean if here else math.nan for spread, here in zip(spreads, told, strict=True)]
    best = best_of(means if measure.ranked else [], unit, measure.higher_is_better, measure.aim)
    best = best or [False] * len(means)
    return [
        cell(spread, unit, best=mark) if here else Cell("")
        for spread, here, mark in zip(spreads, told, best, strict=True)
    ]


def _epsilon(compared: list[Model]) -> list[Cell]:
    """Best are all that read the same as the smallest ε, if not all do and all speak of the same unit and δ."""
    given = {group.method: group.guarantee for group, _ in compared}
    finite = [one for one in given.values() if one is not None and math.isfinite(one.epsilon)]
    telling = comparable(list(given.values())) and len({epsilon_text(one) for one in finite}) > 1
    least = epsilon_text(min(finite, key=lambda one: one.epsilon)) if telling else MISSING
    texts = [epsilon_text(given[group.method]) if _first(group, one) else "" for group, one in compared]
    return [Cell(text, best=telling and text == least) for text in texts]
