import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.report.axes import span
from fedbnn.report.figures import MISSING, Spread, counted, duration, listed, plain, share, show, size
from fedbnn.report.svg import Scale
from fedbnn.report.ticks import nice_ticks, tick_text

values = st.floats(-1e9, 1e9, allow_nan=False)


@given(values, st.floats(1e-6, 1e9), st.integers(2, 10))
def test_ticks_cover_the_range_with_even_round_steps(low: float, width: float, count: int) -> None:
    high = low + width
    ticks = nice_ticks(low, high, count)
    tolerance = 1e-6 * (ticks[1] - ticks[0])
    assert ticks[0] <= low + tolerance
    assert ticks[-1] >= high - tolerance
    assert 2 <= len(ticks) <= count + 2
    steps = [b - a for a, b in pairwise(ticks)]
    assert min(steps) > 0
    assert max(steps) - min(steps) <= 1e-6 * steps[0]
    if width >= 1e-6 * max(abs(low), abs(high)):
        assert ticks[1] > low - tolerance
        assert ticks[-2] < high + tolerance


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 8))
def test_ticks_of_shares_stay_shares(a: float, b: float, count: int) -> None:
    low, high = span([a, b], 0.1, 0.0, 1.0)
    ticks = nice_ticks(low, high, count)
    assert 0 <= ticks[0] <= low + 1e-9
    assert high - 1e-9 <= ticks[-1] <= 1
    mantissa = (ticks[1] - ticks[0]) / 10 ** math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9)
    assert min(abs(mantissa - nice) for nice in (1, 2, 2.5, 5)) < 1e-6


@given(st.integers(0, 10_000))
def test_ticks_of_rounds_are_whole(last: int) -> None:
    ticks = nice_ticks(0, last, 7, integer=True)
    assert all(tick == int(tick) for tick in ticks)
    assert len(set(ticks)) == len(ticks) <= 9


@given(values)
def test_an_empty_range_still_has_an_axis(value: float) -> None:
    ticks = nice_ticks(value, value)
    assert ticks[0] < ticks[-1]
    assert ticks[0] <= value <= ticks[-1]


def test_ticks_by_hand() -> None:
    assert nice_ticks(0, 1, 6) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(0.62, 0.91, 5) == [0.6, 0.7, 0.8, 0.9, 1.0]
    assert nice_ticks(0, 12, 7, integer=True) == [0, 2, 4, 6, 8, 10, 12]
    assert tick_text([0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert tick_text([0, 0.5, 1], percent=True) == ["0%", "50%", "100%"]
    assert tick_text([0, 1000, 2000]) == ["0", "1,000", "2,000"]


@given(st.lists(st.floats(0, 1)), st.floats(0.01, 1))
def test_span_is_wide_enough_and_inside(some: list[float], least: float) -> None:
    low, high = span([*some, math.nan], least, 0.0, 1.0)
    assert 0 <= low < high <= 1
    assert high - low >= least - 1e-12
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in some)


def test_scale_may_run_backwards() -> None:
    scale = Scale(0, 1, 200, 0)
    assert (scale(0), scale(0.25), scale(1)) == (200, 150, 0)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9504, share, "95.0%"),
        (math.nan, share, MISSING),
        (math.inf, plain, MISSING),
        (0.12345, plain, "0.123"),
        (0, size, "0 B"),
        (999.0, size, "999 B"),
        (999.96, size, "1.0 kB"),
        (16000.0, size, "16.0 kB"),
        (999_960, size, "1.0 MB"),
        (2.5e9, size, "2.5 GB"),
        (31.23, duration, "31.2 s"),
        (600, duration, "10.0 min"),
        (36_000, duration, "10.0 h"),
        (Spread(0.95, 0.0123), share, "95.0 ± 1.2%"),
        (Spread(0.95, math.nan), share, "95.0%"),
        (Spread(16000.0, 0.0), size, "16.0 kB"),
        (Spread(600.0, 30.0), duration, "10.0 ± 0.5 min"),
        (Spread(math.nan, math.nan), plain, MISSING),
    ],
)
def test_numbers_as_text(value: float | Spread, unit: object, text: str) -> None:
    assert show(value, unit) == text  # type: ignore[arg-type]


def test_spread() -> None:
    assert Spread.of([1.0, 2.0, 3.0, math.nan]) == Spread(2.0, 1.0)
    assert Spread.of([2.0]).mean == 2.0
    assert math.isnan(Spread.of([2.0]).deviation)
    assert math.isnan(Spread.of([]).mean)


def test_words() -> None:
    assert counted(1, "client") == "1 client"
    assert counted(1200, "client") == "1,200 clients"
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
