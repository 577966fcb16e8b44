import math
from collections import Counter
from fractions import Fraction

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
    many = p * len(draws) >= 10
    left, right = x < x[many][0], x > x[many][-1]
    observed = [counts[left].sum(), *counts[many], counts[right].sum()]
    expected = np.array([p[left].sum(), *p[many], p[right].sum()]) * len(draws)
    return stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1)


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


@pytest.mark.parametrize("sigma2", [Fraction(2**40), Fraction(2**80), Fraction(10**13, 7)], ids=str)
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


def test_the_distribution_is_that_of_rational_arithmetic(monkeypatch):
    """Every coin decided by the exact comparison, which otherwise decides one in 2^16."""
    monkeypatch.setattr(module, "_MARGIN", 2.0**17)
    sigma2 = Fraction(7, 3)
    assert chi_square(discrete_gaussian(4000, sigma2), sigma2) > 1e-8


@pytest.mark.parametrize("bits", [0, 2**16 - 1])
def test_coins_on_the_edge_go_on_to_further_bits(monkeypatch, bits):
    """p = 1/3 and R with the same first 16 bits: what follows decides, here all zeros or all ones."""
    drawn = []
    monkeypatch.setattr(module.secrets, "randbits", lambda count: drawn.append(count) or bits)
    assert module._exact_coin(Fraction(1, 3), 2**16 // 3) is (bits == 0)
    assert drawn == [16]
    assert module._exact_coin(Fraction(1, 3), 2**16 // 3 - 1) is True
    assert module._exact_coin(Fraction(1, 3), 2**16 // 3 + 1) is False
    assert module._exact_coin(Fraction(1, 2), 2**15 - 1) is True
    assert module._exact_coin(Fraction(1, 2), 2**15) is False
    assert drawn == [16]


@pytest.mark.parametrize(
    "sigma2", [*SIGMA2, Fraction(2**40), Fraction(31095, 10000) ** 2 * 2**32, Fraction(1, 997)], ids=str
)
def test_probabilities_in_double_precision_are_as_good_as_promised(monkeypatch, sigma2):
    worst = Fraction(0)
    decide = module._rational_coins

    def checked(probability, exact, index, k):
        nonlocal worst
        for place in range(min(20, len(probability))):
            true = exact(int(index[place])) / k
            assert 0 <= true <= 1
            worst = max(worst, abs(Fraction(probability[place]) - true))
        return decide(probability, exact, index, k)

    monkeypatch.setattr(module, "_rational_coins", checked)
    for _ in range(10):
        discrete_gaussian(100, sigma2)
    assert worst < Fraction(1, 2**48)


@pytest.mark.parametrize("sigma2", [*SIGMA2, Fraction(7, 3), Fraction(2**40), Fraction(1, 997)], ids=str)
def test_laplace_times_kept_is_gauss(monkeypatch, sigma2):
    """|x| / t + gamma(x) = x^2 / (2 sigma^2) + constant, exactly; smaller errors than draws could show."""
    gamma = {}
    size = np.array([0, 1, 2, 5, 40, 3_000_000])

    def coins(values, exact, repeats):
        gamma.update({int(x): exact(place) * int(repeats[place]) for place, x in enumerate(size)})
        return np.ones(len(values), dtype=bool)

    monkeypatch.setattr(module, "_exponential_coins", coins)
    scale = math.isqrt(math.floor(sigma2)) + 1
    module._kept(size, scale, sigma2)
    assert len({Fraction(x, scale) + value - x**2 / (2 * sigma2) for x, value in gamma.items()}) == 1
    assert min(gamma.values()) >= 0


def test_the_fast_decision_is_the_exact_one(monkeypatch):
    """For p = 1/3 and each of the 2^16 first words: only the one word that holds p needs more bits."""
    asked = []
    monkeypatch.setattr(module, "_words", lambda size, kind: np.arange(size, dtype=kind))
    monkeypatch.setattr(module, "_exact_coin", lambda probability, first: asked.append(first) or False)
    heads = module._rational_coins(np.full(2**16, 1 / 3), lambda index: Fraction(1, 3), np.arange(2**16), 1)
    assert asked == [21845]
    assert heads.tolist() == [True] * 21845 + [False] * (2**16 - 21845)


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1, 3), Fraction(1)], ids=str)
@pytest.mark.parametrize("repeats", [1, 3])
def test_exponential_coins(gamma, repeats):
    count = 100_000
    heads = module._exponential_coins(
        np.full(count, float(gamma)), lambda index: gamma, np.full(count, repeats, dtype=np.int64)
    )
    p = math.exp(-gamma * repeats)
    assert abs(heads.mean() - p) <= 6 * math.sqrt(p * (1 - p) / count)


def test_uniform(monkeypatch):
    assert stats.chisquare(np.bincount(module._uniform(100_000, 10), minlength=10)).pvalue > 1e-8
    # 2^64 = 6 mod 10, so the last six words are drawn again.
    words = iter([[2**64 - 1, 5, 2**64 - 7, 2**64 - 6], [2**64 - 2, 12], [13]])
    monkeypatch.setattr(module, "_words", lambda size, kind: np.array(next(words), dtype=kind))
    assert module._uniform(4, 10).tolist() == [3, 5, 9, 2]


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


@pytest.mark.parametrize("sigma2", [Fraction(0), Fraction(-1), Fraction(2**80 + 1), Fraction(1, 2**41)])
def test_sigma_that_cannot_be(sigma2):
    with pytest.raises(ValueError, match="sigma2"):
        discrete_gaussian(1, sigma2)


def test_size_that_cannot_be():
    with pytest.raises(ValueError, match="size"):
        discrete_gaussian(-1, Fraction(1))
