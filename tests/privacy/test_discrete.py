import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedbnn.privacy import discrete as module
from fedbnn.privacy.discrete import discrete_gaussian

SIZE = 200_000
SIGMA2 = [Fraction(1, 4), Fraction(1), Fraction(10), Fraction(1000)]


def probabilities(sigma2, reach=None):
    """Of -reach..reach; beyond ten sigma nothing is left in double precision."""
    reach = reach or 10 * math.isqrt(math.ceil(sigma2)) + 10
    x = np.arange(-reach, reach + 1)
    p = np.exp(-(x**2) / (2 * float(sigma2)))
    return x, p / p.sum()


def chi_square(draws, sigma2):
    """The p-value, with cells joined until each can expect ten draws."""
    x, p = probabilities(sigma2)
    found = Counter(draws.tolist())
    counts = np.array([found[value] for value in x.tolist()])
    assert counts.sum() == len(draws)
    many = np.flatnonzero(p * len(draws) >= 10)
    starts = [0, *many[1:]]  # the tails belong to the outermost cells: by themselves one rare draw would be a refusal
    observed, expected = np.add.reduceat(counts, starts), np.add.reduceat(p, starts) * len(draws)
    return stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1)


def test_one_draw_that_is_seldom_there_is_not_held_against_the_rest():
    x, p = probabilities(Fraction(1, 4))
    draws = np.repeat(x, np.round(p * SIZE).astype(int))
    draws[draws.argmax()] = 3  # expected 0.0024 times
    assert chi_square(draws, Fraction(1, 4)) > 0.5
    draws[:500] = 1
    assert chi_square(draws, Fraction(1, 4)) < 1e-8


# The system's randomness cannot be seeded: bounds are 6 standard errors and p-values of 1e-8, crossed once in 1e8 runs.
@pytest.mark.parametrize("sigma2", SIGMA2, ids=str)
def test_distribution(sigma2):
    draws = discrete_gaussian(SIZE, sigma2)
    assert draws.dtype == np.int64
    assert draws.shape == (SIZE,)
    x, p = probabilities(sigma2)
    variance, fourth = (x**2 * p).sum(), (x**4 * p).sum()
    assert abs(draws.mean()) < 6 * math.sqrt(variance / SIZE)
    assert abs((draws**2).mean() - variance) < 6 * math.sqrt((fourth - variance**2) / SIZE)
    assert abs((draws > 0).sum() - (draws < 0).sum()) < 6 * math.sqrt(SIZE)
    assert chi_square(draws, sigma2) > 1e-8


@pytest.mark.parametrize("sigma2", [Fraction(2**40), Fraction(2**110), Fraction(10**13, 7)], ids=str)
def test_large_sigma(sigma2):
    draws = discrete_gaussian(SIZE, sigma2)
    scaled = draws / math.sqrt(sigma2)
    assert abs(scaled.mean()) < 6 / math.sqrt(SIZE)
    assert abs((scaled**2).mean() - 1) < 6 * math.sqrt(2 / SIZE)
    assert stats.kstest(scaled, "norm").pvalue > 1e-8
    assert abs((draws % 2).mean() - 0.5) < 3 / math.sqrt(SIZE)  # the last digits are random too
    assert chi_square_of_residues(draws) > 1e-8


def chi_square_of_residues(draws):
    return stats.chisquare(np.bincount(draws % 97, minlength=97)).pvalue


@pytest.mark.parametrize("sigma2", [Fraction(7, 3), Fraction(1000)], ids=str)
def test_the_distribution_is_that_of_exact_comparisons(monkeypatch, sigma2):
    """All candidates decided by the exact comparison, which otherwise decides one in 2^16."""
    monkeypatch.setattr(module, "_MARGIN", math.inf)
    assert chi_square(discrete_gaussian(1500, sigma2), sigma2) > 1e-8


# The staircase


def test_the_staircase_is_above_the_curve_and_its_steps_are_the_table():
    with mpmath.workdps(50):
        for k in range(44):
            step = module._SCALE * mpmath.exp(-mpmath.mpf(k * k) / 128)
            assert step <= module._WEIGHTS[k] <= step + (1 if k else 50)  # hardly above it, too
        assert module._SCALE * mpmath.exp(-mpmath.mpf(44 * 44) / 128) <= 1
        assert mpmath.exp(-mpmath.mpf(2 * 44 + 1) / 128) <= 0.5
    assert module._WEIGHTS[44:] == [2]
    assert sum(module._WEIGHTS) == 2**15
    assert np.bincount(module._TABLE).tolist() == module._WEIGHTS


class Candidates:
    """Stands in for the decision: keeps everything, and remembers what it was asked."""

    def __init__(self):
        self.value = self.cell = None

    def __call__(self, value, cell, first, sigma2):
        self.value, self.cell = value.copy(), cell.copy()
        return np.ones(len(value), dtype=bool), np.zeros(len(value), dtype=bool)


def fed(monkeypatch, places, picks, first):
    """These words in place of the system's."""
    data = np.array(places, np.uint64).tobytes() + np.array(picks, np.uint16).tobytes()
    data += np.array(first, np.uint16).tobytes()
    monkeypatch.setattr(module.os, "urandom", lambda count: data)
    found = Candidates()
    monkeypatch.setattr(module, "_decided", found)
    return found


@pytest.mark.parametrize(("sigma2", "width"), [(Fraction(1, 9), 1), (Fraction(64), 1), (Fraction(64 * 9 - 1), 3)])
def test_every_number_is_a_candidate_as_often_as_its_cell_weighs(monkeypatch, sigma2, width):
    """Of all 2^16 words for cell and sign, with each place in the cell."""
    counts = Counter()
    for place in range(width):
        found = fed(monkeypatch, [place] * 2**16, range(2**16), [0] * 2**16)
        module._kept(2**16, sigma2)
        counts.update(found.value[found.cell < 44].tolist())
    expected = {x: module._WEIGHTS[x // width] for x in range(44 * width)}
    assert counts == expected | {-x - 1: weight for x, weight in expected.items()}


def test_places_beyond_the_last_whole_multiple_are_rejected(monkeypatch):
    sigma2 = Fraction(64 * 9)  # 3 numbers in a cell, and 2^64 = 1 mod 3
    fed(monkeypatch, [2**64 - 1, 2**64 - 2, 2**64 - 3, 0, 5], [0] * 5, [0] * 5)
    assert module._kept(5, sigma2).tolist() == [2, 1, 0, 2]


@pytest.mark.parametrize("sigma2", [Fraction(1, 997), Fraction(1), Fraction(64 * 9), Fraction(2**90)], ids=str)
def test_a_cell_is_no_narrower_than_an_eighth_of_sigma(monkeypatch, sigma2):
    found = fed(monkeypatch, [0], [2**16 - 2], [0])  # the first number beyond the table
    monkeypatch.setattr(module, "_beyond", lambda value, first, width, sigma2: (value, True))
    [value] = module._kept(1, sigma2)
    width = int(value) // 44
    assert value == 44 * width
    assert 64 * width**2 >= sigma2
    assert 64 * (width - 1) ** 2 < sigma2
    assert found.cell.tolist() == [44]


@pytest.mark.parametrize("value", [44 * 5 + 3, -44 * 5 - 4])
def test_beyond_the_table_each_cell_has_half_the_weight_of_the_one_before(monkeypatch, value):
    bits, asked = iter([1, 1, 0]), []
    monkeypatch.setattr(module.secrets, "randbits", lambda count: next(bits))
    monkeypatch.setattr(module, "_exactly", lambda *arguments: asked.append(arguments) or True)
    moved, kept = module._beyond(value, 17, 5, Fraction(1600))
    assert kept
    assert moved == value + (10 if value > 0 else -10)
    assert asked == [(Fraction(moved**2, 3200), Fraction(1, 4), 17)]


# The comparison


@pytest.mark.parametrize("a", [Fraction(0), Fraction(1, 3), Fraction(31095, 10007), Fraction(29), Fraction(10**12, 7)])
def test_bounds_of_the_exponential(a):
    with mpmath.workdps(400):
        true = mpmath.exp(-mpmath.mpf(a.numerator) / a.denominator)
        for digits in (5, 30, 50, 200):
            low, high = (mpmath.mpf(v.numerator) / v.denominator for v in module._exponential(a, digits))
            assert low < true < high
            if a <= digits:
                assert high - low <= true * mpmath.mpf(10) ** (4 - digits)


@pytest.mark.parametrize("a", [Fraction(1, 3), Fraction(7, 2), Fraction(12)], ids=str)
@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_a_comparison_on_the_edge_goes_on_to_further_bits(monkeypatch, a, bits):
    """U with the first bits of S e^-a / w: what follows decides, here all zeros or all ones."""
    drawn = []
    monkeypatch.setattr(module.secrets, "randbits", lambda count: drawn.append(count) or bits)
    edge = int(mpmath.floor(2**16 * module._SCALE * mpmath.exp(-mpmath.mpf(a.numerator) / a.denominator) / 2500))
    assert module._exactly(a, 2500, edge) is (bits == 0)
    assert drawn == [64]
    assert edge == 0 or module._exactly(a, 2500, edge - 1) is True
    assert module._exactly(a, 2500, edge + 1) is False
    assert drawn == [64]


def test_an_impossible_number_is_rejected_without_its_probability_being_written_out():
    assert module._exactly(Fraction(2**50), 1, 0) is False


@pytest.mark.parametrize(
    "sigma2", [*SIGMA2, Fraction(2**40), (Fraction(31095, 10000) * 2**32) ** 2, Fraction(2**110), Fraction(1, 997)]
)
def test_what_double_precision_decides_is_right(sigma2):
    """For each of many candidates the first bits of U around S e^-a / w, and any others."""
    rng = np.random.default_rng(0)
    width = math.isqrt(math.ceil(sigma2 / 64) - 1) + 1
    cell = np.concatenate([np.arange(44), rng.integers(0, 44, 100)])
    value = cell * np.int64(width) + rng.integers(0, width, len(cell))
    value[1::2] = ~value[1::2]
    unsure_ones = 0
    for place, (x, k) in enumerate(zip(value.tolist(), cell.tolist(), strict=True)):
        with mpmath.workdps(60):
            a = mpmath.mpf(x * x) * sigma2.denominator / (2 * sigma2.numerator)
            edge = module._SCALE * mpmath.exp(-a) / module._WEIGHTS[k] * 2**16  # of U, in units of its first bits
            near = int(mpmath.floor(edge))
            first = sorted({*range(max(0, near - 2), min(2**16, near + 3)), 0, 1, 2**16 - 1, int(rng.integers(2**16))})
            repeated = np.repeat(value[place], len(first)), np.repeat(cell[place], len(first))
            kept, unsure = module._decided(*repeated, np.array(first, np.uint16), sigma2)
            for bits, keep, ask in zip(first, kept.tolist(), unsure.tolist(), strict=True):
                assert not (keep and ask)
                if keep:
                    assert bits + 1 <= edge
                elif not ask:
                    assert bits >= edge
                unsure_ones += ask
            if a <= 16:  # only the one that holds the edge, or is as good as on it, is left to exact arithmetic
                assert sum(unsure.tolist()) <= 2
    assert unsure_ones > 0


def test_draws_are_independent():
    one, other = (discrete_gaussian(SIZE, Fraction(100)) for _ in range(2))
    assert not np.array_equal(one, other)
    assert abs((one * other).mean()) < 6 * 100 / math.sqrt(SIZE)
    assert abs((one[1:] * one[:-1]).mean()) < 6 * 100 / math.sqrt(SIZE)


def test_no_seed_repeats_it():
    draws = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 (the global seed is what must not matter)
        draws.append(discrete_gaussian(64, Fraction(2**40)))
    assert not (draws[0] == draws[1]).any()


@pytest.mark.parametrize("size", [0, 1, 7, 100_001])
def test_size(size):
    assert discrete_gaussian(size, Fraction(4)).shape == (size,)


def test_tiny_sigma_is_zero():
    assert not discrete_gaussian(1000, Fraction(1, 2**40)).any()


@pytest.mark.parametrize("sigma2", [Fraction(0), Fraction(-1), Fraction(2**110 + 1), Fraction(1, 2**41)])
def test_sigma_that_cannot_be(sigma2):
    with pytest.raises(ValueError, match="sigma2"):
        discrete_gaussian(1, sigma2)


def test_size_that_cannot_be():
    with pytest.raises(ValueError, match="size"):
        discrete_gaussian(-1, Fraction(1))
