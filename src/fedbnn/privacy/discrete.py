"""Discrete Gaussian noise: whole numbers that add up exactly, drawn exactly, from the operating system's randomness.

    P(X = x) = f(x) / sum_y f(y),   f(x) = e^(-x^2 / (2 sigma^2)),   x a whole number

By rejection from a staircase above f (as Karney 2016 draws, with the coins of Canonne, Kamath and Steinke 2020 replaced
by one comparison). With cells of h = ceil(sigma / 8) numbers, f is at most e^(-k^2 / 128) in cell k = 0, 1, ...

1. A cell k < 44 is drawn with probability w_k / 2^15, and the cells beyond with 2 / 2^15, there k = 44 + g with
   probability 2^-(g+1), which is a weight w_k = 2^-g. The w_k are whole numbers with w_k >= S e^(-k^2 / 128) for one S;
   beyond the table this holds as e^(-(2k + 1) / 128) <= 1/2 and S e^(-44^2 / 128) <= 1.
2. Y = k h + J, J uniform in 0..h-1, and X = Y or -(Y + 1) by a fair coin: |X| >= k h, so S f(X) <= w_k.
3. X is kept if U w_k < S f(X), U uniform in [0, 1).

Every whole number x is in one cell, with one sign and one J, so it is drawn and kept with probability

    w_k / 2^15 * 1 / (2 h) * S f(x) / w_k  =  S f(x) / (2^16 h),

the same multiple of f(x) for all: what is kept has the distribution above, and nothing was approximated. Nobody needs
all digits of U for step 3: its first 16 bits decide in double precision whenever the error of that, which is bounded
below, cannot matter; otherwise (one time in 2^16) the comparison goes on with further bits of U and with bounds of
e^-a that are as tight as needed, from decimal arithmetic, whose exp is correctly rounded.

Double precision. Kept if U q < 1, q = (w_k / S) e^a, a = x^2 / (2 sigma^2). With e = 2^-53 the computed a is off by a
factor 1 +- 4 e, and q is computed as (w_k / S) T(a / 256)^256, T the first six terms of the exponential series, all
positive, so T is off by less than 16 e and T^256 by less than 2^13 e = 2^-40, as are e^a for a <= 16 and the product.
For t = a / 256 <= 1 / 16, e^t (1 - t^6 / 720) <= T <= e^t, so T^256 lacks less than 256 t^6 / 720 < 2^-25 of e^a. Hence
q is right but for 2^-24 where a <= 16. Beyond, it is too large by no more than that (up to a = 700, where it is far
above 2^16 in any case), which is all that a rejection needs. Of floating point only + - * / are used, which IEEE 754
rounds correctly.

How long it takes depends on the noise that comes out and on sigma, and on nothing else.
"""

import decimal
import math
import os
import secrets
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

_PER_SIGMA = 8  # cells
_CELLS = 44  # with a weight of their own
_TABLE_BITS = 15
_BITS = 16  # of U that are drawn at first: with fewer, exact arithmetic takes longer than what the system saves
_MARGIN = 2.0**-20  # what q may be off by: it is by less than 2^-24, the rest is reserve
_MOST_A = 16.0  # up to which q has an upper bound
_SERIES = [1 / math.factorial(k) for k in range(5, -1, -1)]
_SQUARINGS = 8  # T(a / 2^8)^(2^8)
_LEAST, _MOST = Fraction(1, 2**40), Fraction(2**110)  # of sigma^2: Y < 45 h < 2^58 stays far inside 64 bits
_BLOCK = 2**14  # candidates at once: their arrays stay in the cache


def discrete_gaussian(size: int, sigma2: Fraction) -> _Ints:
    """`size` independent draws of the discrete Gaussian with parameter sigma^2 (its variance, unless sigma < 1).

    sigma^2 is from 2^-40 to 2^110 and rational, so that what is drawn is what is accounted for.
    """
    if size < 0:
        raise ValueError(f"size is {size}: must be at least 0")
    sigma2 = Fraction(sigma2)
    if not _LEAST <= sigma2 <= _MOST:
        raise ValueError(f"sigma2 is {sigma2}: must be between 2^-40 and 2^110")
    draws: list[_Ints] = [np.empty(0, np.int64)]
    missing = size
    while missing > 0:
        kept = _kept(min(_BLOCK, 64 + 9 * missing // 8), sigma2)
        draws.append(kept)
        missing -= len(kept)
    return np.concatenate(draws)[:size]


def _kept(tries: int, sigma2: Fraction) -> _Ints:
    """What is kept of so many candidates."""
    width = math.isqrt(math.ceil(sigma2 / _PER_SIGMA**2) - 1) + 1  # h: the least with (8 h)^2 >= sigma^2
    random = os.urandom(12 * tries)
    places = np.frombuffer(random, np.uint64, tries)
    picks = np.frombuffer(random, np.uint16, tries, 8 * tries)
    first = np.frombuffer(random, np.uint16, tries, 10 * tries)
    cell = _TABLE[picks >> 1]
    value = (places % np.uint64(width)).astype(np.int64)
    value += cell * np.int64(width)
    value ^= -(picks & 1).astype(np.int64)  # -(Y + 1) is Y with all bits turned
    keep, unsure = _decided(value, cell, first, sigma2)
    for index in np.flatnonzero(unsure & (cell < _CELLS)):
        keep[index] = _exactly(
            Fraction(int(value[index]) ** 2) / (2 * sigma2), _WEIGHTS[cell[index]], int(first[index])
        )
    for index in np.flatnonzero(cell == _CELLS):
        value[index], keep[index] = _beyond(int(value[index]), int(first[index]), width, sigma2)
    keep &= places <= np.uint64(2**64 // width * width - 1)  # beyond the last whole multiple of h, J is not uniform
    return value[keep]


def _decided(value: _Ints, cell: _Ints, first: NDArray[np.uint16], sigma2: Fraction) -> tuple[_Flags, _Flags]:
    """Step 3 in double precision: who is kept for sure, and for whom it must be decided exactly."""
    size = value.astype(np.float64)
    a = size * size / float(2 * sigma2)  # float() of a fraction and astype round correctly
    with np.errstate(over="ignore", invalid="ignore"):
        t = a * 2.0**-_SQUARINGS
        q = t * _SERIES[0]
        for coefficient in _SERIES[1:-1]:
            q += coefficient
            q *= t
        q += _SERIES[-1]
        for _ in range(_SQUARINGS):
            q *= q
        q *= _COSTS[cell]
        low = first * q
        kept: _Flags = (low + q <= 2.0**_BITS * (1 - _MARGIN)) & (a <= _MOST_A)
        return kept, ~kept & ~(low >= 2.0**_BITS * (1 + _MARGIN))


def _beyond(value: int, first: int, width: int, sigma2: Fraction) -> tuple[int, bool]:
    """A candidate of the cells beyond the table, moved on to its own, and whether it is kept."""
    further = 0
    while secrets.randbits(1):
        further += 1
    value += further * width if value >= 0 else -further * width
    return value, _exactly(Fraction(value**2) / (2 * sigma2), Fraction(1, 2**further), first)


def _exactly(a: Fraction, weight: Fraction | int, first: int) -> bool:
    """Whether U w < S e^-a, where the first bits of U are those of `first` and the others are drawn as needed."""
    unit, digits = Fraction(weight, _SCALE * 2**_BITS), 30
    while True:
        low, high = _exponential(a, digits)
        if (first + 1) * unit <= low:
            return True
        if first * unit >= high:
            return False
        first, unit, digits = first << 64 | secrets.randbits(64), unit / 2**64, digits + 20


def _exponential(a: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Bounds of e^-a for a >= 0, with so many digits; the lower one is zero where that is not enough of them."""
    with decimal.localcontext(decimal.Context(prec=digits, rounding=decimal.ROUND_FLOOR)) as context:
        if a > digits:
            return Fraction(0), Fraction((-decimal.Decimal(digits)).exp().next_plus())
        numerator, denominator = decimal.Decimal(a.numerator), decimal.Decimal(a.denominator)
        high = (-(numerator / denominator)).exp().next_plus()
        context.rounding = decimal.ROUND_CEILING
        return Fraction((-(numerator / denominator)).exp().next_minus()), Fraction(high)


def _staircase() -> tuple[int, list[int]]:
    """S and the weights, the last one that of all cells beyond the table; what rounding leaves over is the first's."""
    heights = [_exponential(Fraction(k * k, 2 * _PER_SIGMA**2), 30)[1] for k in range(_CELLS)]
    scale = math.floor((2**_TABLE_BITS - 2 - _CELLS) / sum(heights))
    weights = [math.ceil(scale * height) for height in heights]
    return scale, [weights[0] + 2**_TABLE_BITS - 2 - sum(weights), *weights[1:], 2]


_SCALE, _WEIGHTS = _staircase()
_TABLE: _Ints = np.repeat(np.arange(_CELLS + 1), _WEIGHTS)  # the cell for each of 2^15 equally likely numbers
_COSTS: _Floats = np.array(_WEIGHTS) / _SCALE
