"""Features against those of scikit-learn, and properties that hold for any cells."""

import math
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from fedbnn.base.errors import UserError
from fedbnn.data.tables.coding import Coding, ColumnCode
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.fitting import fit
from fedbnn.data.tables.raw import Place, RawTable

RNG = np.random.default_rng(0)


def raw(decimal=".", **columns):
    length = len(next(iter(columns.values())))
    cells = {name: tuple(column) for name, column in columns.items()}
    return RawTable(cells, tuple(Place("it", row + 2) for row in range(length)), decimal)


def texts(values):
    return [None if np.isnan(value) else str(value) for value in values]


def test_numbers_are_imputed_and_indicated_as_by_scikit_learn():
    public, private = RNG.normal(size=(2, 40))
    public[::7] = private[::5] = np.nan
    coding, _ = fit(["a"], {"a": ColumnSettings("number")}, raw(a=texts(public)))
    x = coding.encode(raw(a=texts(private))).x
    median = SimpleImputer(strategy="median").fit(public[:, None]).transform(private[:, None])
    missing = MissingIndicator(features="all").fit(public[:, None]).transform(private[:, None])
    np.testing.assert_array_equal(x, np.concatenate([median, missing], axis=1).astype(np.float32))
    assert coding.features == ("a", "a: missing")


def test_categories_are_encoded_as_by_scikit_learn():
    public, private = RNG.choice(["x", "y", "z"], 30), RNG.choice(["x", "y", "z", "new"], 30)
    coding, _ = fit(["a"], {}, raw(a=public.tolist()))
    x = coding.encode(raw(a=private.tolist())).x
    known = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(public[:, None]).transform(private[:, None])
    np.testing.assert_array_equal(x[:, :-1], known)
    np.testing.assert_array_equal(x[:, -1], private == "new")
    assert coding.features == ("a = x", "a = y", "a = z", "a: other")


def test_a_missing_category_is_another_and_no_error():
    encoded = Coding((ColumnCode("a", "category", values=("x",)),)).encode(raw(a=["x", None, "?"]))
    np.testing.assert_array_equal(encoded.x, [[1, 0], [0, 1], [0, 1]])
    assert encoded.flags() == ["", "", "a: not one of its values"]


def test_codes_that_a_program_has_turned_into_fractions_are_the_same():
    coding, _ = fit(["a"], {"a": ColumnSettings("category")}, raw(a=["1", "2.0", "01"]))
    assert coding.columns[0].values == ("01", "1", "2")
    found = coding.encode(raw(a=["1.0", "1", "2", "01", "1.5"])).x.argmax(axis=1)
    assert found.tolist() == [1, 1, 2, 0, 3]


@given(st.dates(date(1900, 1, 1), date(2100, 12, 31)))
def test_dates_are_years_and_months_on_a_circle(day):
    coding = Coding((ColumnCode("d", "date"),))
    years, sine, cosine = coding.encode(raw(d=[day.isoformat()])).x[0]
    assert years == np.float32((day - date(2000, 1, 1)) / timedelta(days=365.25))
    assert sine == pytest.approx(math.sin(math.tau * (day.month - 1) / 12), abs=1e-6)
    assert cosine == pytest.approx(math.cos(math.tau * (day.month - 1) / 12), abs=1e-6)
    others = raw(d=[f"{day:%d.%m.}{day.year}", f"{day.isoformat()}T10:30"])
    np.testing.assert_array_equal(coding.encode(others).x, [[years, sine, cosine]] * 2)


def test_dates_in_a_format_of_their_own_and_outside_their_years():
    coding = Coding((ColumnCode("d", "date", low=2010, high=2020, format="%m/%d/%Y"),))
    encoded = coding.encode(raw(d=["02/03/2011", "01/01/1890", "12/24/2999", "2011-02-03"]))
    same = Coding((ColumnCode("d", "date"),)).encode(raw(d=["2011-02-03", "2010-01-01", "2020-12-31"])).x
    np.testing.assert_array_equal(encoded.x[:3], same)
    assert encoded.flags() == ["", "d: below 2010", "d: above 2020", "d: no date"]


def test_absurd_numbers_are_clamped_and_flagged():
    coding = Coding((ColumnCode("age", "number", low=0, high=120, fill=50.0),))
    encoded = coding.encode(raw(age=["30", "-4", "999", "old", None]))
    assert encoded.x[:, 0].tolist() == [30, 0, 120, 50, 50]
    assert encoded.flags() == ["", "age: below 0", "age: above 120", "age: no number", ""]
    assert encoded.counts() == [
        "column 'age': 1 value(s) no number",
        "column 'age': 1 value(s) below 0",
        "column 'age': 1 value(s) above 120",
    ]


@pytest.mark.parametrize(
    ("values", "cells", "expected"),
    [
        ((), ["yes", "No", "TRUE", "0", "ja", "nein"], [1, 0, 1, 0, 1, 0]),
        (("absent", "present"), ["present", "Absent", "yes"], [1, 0, 0.5]),
    ],
)
def test_booleans(values, cells, expected):
    code = ColumnCode("b", "boolean", values=values, fill=0.5)
    assert Coding((code,)).encode(raw(b=cells)).x[:, 0].tolist() == expected


CODES = Coding(
    (
        ColumnCode("n", "number", low=-1, high=1, optional=True),
        ColumnCode("c", "category", values=("x", "y")),
        ColumnCode("b", "boolean", optional=True),
        ColumnCode("d", "date", fill=10.0, optional=True),
        ColumnCode("i", "id"),
    )
)
CELL = st.none() | st.text(max_size=8) | st.floats().map(str) | st.integers().map(str) | st.dates().map(str)


@given(st.lists(st.tuples(CELL, CELL, CELL, CELL), min_size=1, max_size=5))
def test_whatever_cells_hold_features_are_finite_and_in_range(rows):
    columns = dict(zip("ncbd", zip(*rows, strict=True), strict=True))
    x = CODES.encode(raw(**columns)).x
    assert x.shape == (len(rows), len(CODES.features))
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    assert (np.abs(x[:, 0]) <= 1).all()
    assert (x[:, 2:5].sum(axis=1) == 1).all()
    assert np.isin(x[:, [1, 2, 3, 4, 6, 10]], [0, 1]).all()


def test_a_coding_is_plain_data_that_comes_back():
    assert Coding.from_json(CODES.to_json(), "it") == CODES
    assert CODES.ids == ["i"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"columns": []}', "it: columns = []"),
        ('{"columns": [{"name": "a", "kind": "ignore"}]}', "it: columns.0: kind = 'ignore'"),
        ('{"columns": [{"name": "a", "kind": "text"}]}', "it: columns.0.kind = 'text'"),
        ('{"columns": [{"name": "a", "kind": "id"}]}', "no column has a feature"),
        ('{"columns": [{"name": "a", "kind": "number"}, {"name": "a", "kind": "number"}]}', "more than once"),
        ('{"columns": [{"name": "a", "kind": "date", "fill": 1e9}]}', "fill of a date"),
        ('{"columns": [{"name": "a", "kind": "number", "fill": 1e300}]}', "columns.0.fill"),
    ],
)
def test_a_coding_that_is_none(text, words):
    with pytest.raises(UserError) as caught:
        Coding.from_json(text, "it")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# --- what is declared


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "category", "low": 0}, "low is for number and date columns, this one is kind = 'category'"),
        ({"kind": "number", "values": ("a",)}, "values is for category and boolean"),
        ({"kind": "id", "optional": True}, "optional is for"),
        ({"kind": "number", "low": 3, "high": 3}, "low = 3 must be below high = 3"),
        ({"kind": "category", "values": ("a", "a")}, "values must be different"),
        ({"kind": "boolean", "values": ("a",)}, "two"),
        ({"kind": "date", "low": 2010.5}, "low of a date is a year"),
        ({"kind": "text"}, "Input should be"),
    ],
)
def test_columns_that_cannot_be(wrong, words):
    with pytest.raises(UserError, match=words):
        ColumnSettings(**wrong)


# --- what is guessed


@pytest.mark.parametrize(
    ("name", "cells", "kind"),
    [
        ("a", ["1", "2.5", None, "-3"], "number"),
        ("a", ["yes", "no", "yes", None], "boolean"),
        ("a", ["2024-01-31", "01.02.2024"], "date"),
        ("a", ["x", "y", "x", "y"], "category"),
        ("patient_id", ["1", "2", "3", "4", "5"], "id"),
        ("PatientID", ["a1", "a2", "a3", "a4", "a5"], "id"),
        ("paid", ["1", "2", "3", "4", "5"], "number"),
    ],
)
def test_kinds_are_guessed_by_public_cells(name, cells, kind):
    coding, told = fit(
        [name, "other"],
        {"other": ColumnSettings("number", low=0, high=1)},
        raw(**{name: cells, "other": [None] * len(cells)}),
    )
    assert coding.columns[0].kind == kind
    assert len(told) == 1
    assert f"column '{name}' is not declared" in told[0]
    assert f"taken as {kind}" in told[0]


@pytest.mark.parametrize("cells", [[None] * 4, ["a b", "c d", "e f", "g"]])
def test_free_text_and_empty_columns_are_left_out(cells):
    coding, told = fit(["a", "b"], {}, raw(a=cells, b=["1"] * 4))
    assert [column.name for column in coding.columns] == ["b"]
    assert "left out" in told[0]


def test_fills_are_public_medians_or_middles():
    declared = {
        "a": ColumnSettings("number", low=0, high=10, optional=True),
        "b": ColumnSettings("number", low=0, high=10, optional=False),
        "c": ColumnSettings("boolean"),
        "d": ColumnSettings("date", low=2001, high=2003),
    }
    empty = [None] * 3
    coding, told = fit("abcd", declared, raw(a=["1", "2", "9"], b=empty, c=empty, d=empty))
    assert [column.fill for column in coding.columns[:3]] == [2, 5, 0.5]
    assert [column.optional for column in coding.columns] == [True, False, True, True]
    middle = date(2000, 1, 1) + timedelta(days=coding.columns[3].fill)
    assert abs(middle - date(2002, 7, 2)) <= timedelta(days=1)
    assert told == []


@pytest.mark.parametrize(
    ("declared", "cells", "words"),
    [
        ({}, [], "does not declare column 'a', and there are no public records to guess its kind from"),
        ({"a": ColumnSettings("number")}, [None], "data.columns.a: no public record has a value"),
        ({"a": ColumnSettings("category")}, [None], "data.columns.a: there is no public value"),
        ({"a": ColumnSettings("number")}, ["3,5", "4,5", "1"], "such as '3,5'; change the kind"),
        ({"a": ColumnSettings("date")}, ["3/4/2020"], "data.columns.a.kind = 'date', but most public records"),
        ({"a": ColumnSettings("id")}, ["x"], "no column is left to learn from"),
    ],
)
def test_what_cannot_be_fitted(declared, cells, words):
    table = RawTable({"a": tuple(cells)}, tuple(Place("it", 2) for _ in cells))
    with pytest.raises(UserError) as caught:
        fit(["a"], declared, table)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
