"""One table, three renderings: all of them show the same cells."""

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedbnn.cli.tables import Printed
from fedbnn.federation.evaluation import ALL_SCORES, COSTS, DETECTION, MEASURES, POOLED, SCORES, SOMETIMES, Measure
from fedbnn.federation.regression_evaluation import REGRESSION_SCORES
from fedbnn.report.figures import COMPACT, UNITS, Spread, best_of, cell, percent, plain, share
from fedbnn.report.page import environment
from fedbnn.report.schema import RegressionScores, Result, Scores
from fedbnn.report.table import Cell, Column, Table, markdown, row, table
from tests.report.reader import Reader

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)


def html(one: Table) -> str:
    template = environment("fedbnn.report").from_string(
        '{% from "table.html.j2" import show %}{{ show(one, "Name", "results") }}'
    )
    return template.render(one=one)


def terminal(one: Table) -> list[list[str]]:
    console = Console(width=400, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(Printed(one))
    return [re.split(r" {2,}", line.strip()) for line in capture.get().splitlines()]


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=2, max_size=5)))
def test_all_renderings_show_the_same(texts: list[list[str]]) -> None:
    one = table(texts[0], [row(*line) for line in texts[1:]])
    lines = markdown(one).splitlines()
    assert [[text.strip() for text in line.strip("|").split("|")] for line in (lines[0], *lines[2:])] == texts
    assert Reader(html(one)).tables == [texts]
    assert terminal(one) == texts


def test_marks_of_each_rendering() -> None:
    rows = [
        row(Cell("fedavg", model="global"), cell(Spread(0.95, 0.01), share, best=True)),
        row(Cell("fedavg", model="fine-tuned"), "", kind="more"),
        row("the paper", "88.2", kind="paper"),
    ]
    one = Table([Column("Method", words=True), Column("Accuracy", meaning="of <all>")], rows, "Results")
    assert markdown(one) == (
        "**Results**\n\n| Method | Accuracy |\n|---|---|\n| fedavg global | **95.0 ± 1.0%** |\n"
        "| fedavg fine-tuned |  |\n| *the paper* | *88.2* |"
    )
    page = html(one)
    assert Reader(page).tables[0][1:] == [
        ["fedavg global", "95.0 ± 1.0% ★best"],
        ["fedavg fine-tuned", ""],
        ["the paper", "88.2"],
    ]
    assert '<th scope="col" class="number" title="of &lt;all&gt;">' in page
    assert '<tr class="more"><th scope="row"><span class="unseen">fedavg</span>' in page
    assert '<tr class="paper">' in page
    assert terminal(one)[1:4] == [["fedavg global", "95.0 ± 1.0%"], ["fine-tuned"], ["the paper", "88.2"]]


@pytest.mark.parametrize("text", ["<b>&", "[red]x[/red]", "a\x00b"])
def test_words_are_never_taken_for_markup(text: str) -> None:
    one = table(["", "n"], [row(text, "1")])
    assert Reader(html(one)).tables[0][1][0] == text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if "\x00" not in text:
        assert terminal(one)[1] == [text, "1"]


@pytest.mark.parametrize(
    ("means", "higher", "expected"),
    [
        ([0.91, 0.9104, 0.5], True, [True, True, False]),  # they read the same
        ([0.91, 0.5, float("nan")], False, [False, True, False]),
        ([0.5, 0.5001], True, [False, False]),  # nothing to tell apart
        ([0.5, float("nan")], True, [False, False]),
        ([], True, []),
    ],
)
def test_the_best_is_what_reads_best(means: list[float], higher: bool, expected: list[bool]) -> None:
    assert best_of(means, share, higher) == expected


@given(st.floats(0, 1))
def test_shares_round_as_percentages_do(value: float) -> None:
    assert str(cell(value, share)) == f"{value:.1%}"
    assert str(cell(value, percent)) + "%" == f"{value:.1%}"


def test_seeds_that_agree_have_a_deviation_only_where_it_is_asked_for() -> None:
    same = Spread.of([0.5, 0.5])
    assert str(cell(same, plain)) == "0.500"
    assert str(cell(same, plain, even_zero=True)) == "0.500 ± 0.000"
    assert str(cell(Spread.of([0.5]), plain, even_zero=True)) == "0.500"


def test_every_measure_has_its_words_its_unit_and_its_place_in_a_result() -> None:
    in_regression = [name for name in REGRESSION_SCORES if name not in SCORES]
    assert (*SCORES, *SOMETIMES, *in_regression, *COSTS) == tuple(MEASURES)
    assert (*SCORES, *in_regression) == ALL_SCORES
    assert set(POOLED) <= set(SCORES)
    assert {*SCORES, *SOMETIMES} == set(Scores.model_fields)
    assert {*REGRESSION_SCORES, *DETECTION} == set(RegressionScores.model_fields)
    assert set(COSTS) <= set(Result.model_fields)
    units = get_args(Measure.__annotations__["unit"])
    assert UNITS.keys() == COMPACT.keys() == set(units)
    assert len({measure.title for measure in MEASURES.values()}) == len(MEASURES)
    aimed = {name: measure.aim for name, measure in MEASURES.items() if measure.aim is not None}
    assert aimed == {"coverage_90": 0.9}
    assert best_of([0.80, 0.91, 0.99], UNITS["share"], False, 0.9) == [False, True, False]
    better = {name for name, measure in MEASURES.items() if measure.higher_is_better}
    assert better == {name for name in MEASURES if "accuracy" in name or "auroc" in name}
