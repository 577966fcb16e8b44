"""Masks: whole numbers modulo 2^64 that hide what they are added to, and cancel.

    y_u = x_u + m(b_u) + sum_{v > u} m(s_uv) - sum_{v < u} m(s_uv)   mod 2^64

m stretches a seed to as many numbers as x has. b_u is u's own seed; s_uv is known to u and v, who add it with opposite
signs, so in the sum of all y_u only the m(b_u) are left beside the x_u. Without the seeds a mask cannot be told from
uniform numbers, nor can y_u.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedbnn.privacy.secure.primitives import stream

Numbers = NDArray[np.int64]
_Words = NDArray[np.uint64]


def mask(seed: bytes, size: int) -> _Words:
    """`size` numbers of 64 bits."""
    return np.frombuffer(stream(seed, 8 * size), dtype="<u8").astype(np.uint64)


def pair_masks(client: int, seeds: Mapping[int, bytes], size: int) -> _Words:
    """What a client adds for its peers, whose common seeds these are."""
    total = np.zeros(size, np.uint64)
    for peer, seed in seeds.items():
        if peer == client:
            raise ValueError(f"client {client} has no seed in common with itself")
        if peer > client:
            total += mask(seed, size)
        else:
            total -= mask(seed, size)
    return total


def words(numbers: Numbers) -> _Words:
    """The same numbers modulo 2^64."""
    return numbers.astype(np.int64, copy=False).view(np.uint64)


def signed(numbers: _Words) -> Numbers:
    """The numbers from -2^63 to 2^63 - 1 that these are modulo 2^64."""
    return numbers.view(np.int64)
