"""Discrete Gaussian noise: whole numbers that add up exactly, drawn exactly, from the operating system's randomness.

    P(X = x) = e^(-x^2 / (2 sigma^2)) / sum_y e^(-y^2 / (2 sigma^2)),   x a whole number

The algorithm of Canonne, Kamath and Steinke (The Discrete Gaussian for Differential Privacy, NeurIPS 2020), with
t = floor(sigma) + 1:

1. Y of the discrete Laplace, P(Y = y) ~ e^(-|y| / t): U uniform in 0..t-1, kept with probability e^(-U / t);
   V the number of successes of probability e^-1 before the first failure; Y = +-(U + t V), "minus zero" is rejected.
2. Y is kept with probability e^(-gamma), gamma = (|Y| - sigma^2 / t)^2 / (2 sigma^2).
3. A coin of probability e^(-gamma), 0 <= gamma <= 1: K is the first k = 1, 2, ... whose coin of probability gamma / k
   fails; success if K is odd. For gamma > 1, m >= gamma such coins of probability e^(-gamma / m) must all succeed.

Only coins of rational probability p are ever tossed: a uniform number R is below p or not. Nobody needs all digits of R
for that: its first 16 bits and p in double precision decide whenever the rounding error of p, which is bounded below,
cannot matter; otherwise (one coin in 2^16) the comparison goes on in rational arithmetic with further bits of R. Every
decision is that of infinitely many digits, so the distribution is the one above and not an approximation. Of floating
point only + - * / are used, which IEEE 754 rounds correctly.

How long it takes depends on the noise that comes out, though on nothing else.
"""

import math
import os
import secrets
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]
_Word = TypeVar("_Word", np.uint8, np.uint16, np.uint64)
_Exact = Callable[[int], Fraction]  # the exact value of the i-th element of an array of doubles

_BITS = 16  # of R that are drawn at first: with fewer, rational arithmetic takes longer than what the system saves
# What p may be off by, in units of 2^-16. Rounding moves p by less than 2^-48, see `_kept`; the rest is reserve.
_MARGIN = 2.0**-20
_LEAST, _MOST = Fraction(1, 2**40), Fraction(2**80)  # of sigma^2: |Y| and m stay far inside 64 bits
_BLOCK = 2**15  # candidates at once: their arrays stay in the cache


def discrete_gaussian(size: int, sigma2: Fraction) -> _Ints:
    """`size` independent draws of the discrete Gaussian with parameter sigma^2 (its variance, unless sigma < 1).

    sigma^2 is from 2^-40 to 2^80 and rational, so that what is drawn is what is accounted for.
    """
    if size < 0:
        raise ValueError(f"size is {size}: must be at least 0")
    sigma2 = Fraction(sigma2)
    if not _LEAST <= sigma2 <= _MOST:
        raise ValueError(f"sigma2 is {sigma2}: must be between 2^-40 and 2^80")
    scale = math.isqrt(math.floor(sigma2)) + 1
    draws: list[_Ints] = [np.empty(0, np.int64)]
    missing = size
    while missing > 0:
        candidates = _discrete_laplace(min(_BLOCK, 64 + 5 * missing // 2), scale)
        kept = candidates[_kept(np.abs(candidates), scale, sigma2)]
        draws.append(kept)
        missing -= len(kept)
    return np.concatenate(draws)[:size]


def _kept(size: _Ints, scale: int, sigma2: Fraction) -> _Flags:
    """Step 2, for |Y|.

    With e = 2^-53, c = sigma^2 / t < sigma and d = |Y| - c: |Y| and c are off by a factor 1 +- e at most, d by less
    than 2 e (|d| + c), so gamma = d^2 / (2 sigma^2) by less than 11 e gamma + 2 e |d| c / sigma^2 < 16 e max(1, gamma),
    as |d| c / sigma^2 < sqrt(2 gamma). Hence gamma / (m k), where m >= max(1, gamma), is off by less than 2^-48 = 32 e.
    """
    centre = sigma2 / scale
    twice = 2 * sigma2
    off = size.astype(np.float64) - float(centre)  # float() of a fraction and astype round correctly
    gamma = off * off / float(twice)
    parts = np.floor(gamma * (1 + 2.0**-40) + 2.0**-40).astype(np.int64) + 1  # m: above gamma even if that was low

    def exact(index: int) -> Fraction:
        return (int(size[index]) - centre) ** 2 / twice / int(parts[index])

    return _exponential_coins(gamma / parts, exact, parts)


def _discrete_laplace(tries: int, scale: int) -> _Ints:
    """Draws of the discrete Laplace with parameter t = scale; fewer than `tries`, as some are rejected."""
    drawn = _uniform(tries, scale)
    rest = drawn[_exponential_coins(drawn / scale, lambda index: Fraction(int(drawn[index]), scale))]
    times = np.zeros(len(rest), np.int64)
    alive = np.arange(len(rest))
    while len(alive):
        alive = alive[_exponential_coins(np.ones(len(alive)), lambda _: Fraction(1), first=2)]  # 1 / 1 is sure
        times[alive] += 1
    value: _Ints = rest + scale * times
    minus = _words(len(rest), np.uint8) >= 128
    minus_zero: _Flags = minus & (value == 0)
    value[minus] *= -1
    return value[~minus_zero]


def _exponential_coins(gamma: _Floats, exact: _Exact, repeats: _Ints | None = None, first: int = 1) -> _Flags:
    """Step 3: for each gamma in [0, 1] whether `repeats` (1 if not given) coins of probability e^(-gamma) succeed.

    The coins for k < `first` are known to succeed.
    """
    success = np.zeros(len(gamma), np.bool_)
    left = np.ones(len(gamma), np.int64) if repeats is None else repeats.copy()
    turn = np.arange(len(gamma))  # who still has a coin to toss
    while len(turn):
        going, k = turn, first - 1
        passed = [turn[:0]]
        while len(going):
            k += 1
            heads = _rational_coins(gamma[going] / k, exact, going, k)
            if k % 2:
                passed.append(going[~heads])
            going = going[heads]
        turn = np.concatenate(passed)
        left[turn] -= 1
        finished = left[turn] == 0
        success[turn[finished]] = True
        turn = turn[~finished]
    return success


def _rational_coins(probability: _Floats, exact: _Exact, index: _Ints, k: int) -> _Flags:
    """Coins of probability gamma / k, where gamma is exact(index)."""
    first = _words(len(probability), np.uint16)
    above = probability * 2.0**_BITS - first  # R < p for sure if at least 1 + error, R > p for sure if below -error
    heads = above > 1
    for close in np.flatnonzero(np.abs(above - 0.5) < 0.5 + _MARGIN):
        heads[close] = _exact_coin(exact(int(index[close])) / k, int(first[close]))
    return heads


def _exact_coin(probability: Fraction, first: int) -> bool:
    """Whether R < probability, where the first bits of R are those of `first` and the others are drawn as needed."""
    rest = probability * 2**_BITS - first  # of the cell that R is in, the part below p
    while 0 < rest < 1:
        rest = rest * 2**_BITS - secrets.randbits(_BITS)
    return bool(rest >= 1)


def _uniform(size: int, below: int) -> _Ints:
    """Whole numbers, each of 0..below-1 equally likely: words beyond the last whole multiple are drawn again."""
    words = _words(size, np.uint64)
    beyond = 2**64 % below
    while beyond:
        again = np.flatnonzero(words >= np.uint64(2**64 - beyond))
        if not len(again):
            break
        words[again] = _words(len(again), np.uint64)
    return (words % np.uint64(below)).astype(np.int64)


def _words(size: int, kind: type[_Word]) -> NDArray[_Word]:
    return np.frombuffer(bytearray(os.urandom(size * np.dtype(kind).itemsize)), dtype=kind)
