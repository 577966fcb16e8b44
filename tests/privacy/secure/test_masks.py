"""Masks of pairs cancel modulo 2^64, masks look uniform, and a change of input shows as just that change."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.privacy.secure.masks import mask, pair_masks, signed, words


@given(st.integers(2, 9), st.integers(1, 40))
def test_masks_of_pairs_cancel(clients, size):
    seeds = {(u, v): os.urandom(32) for v in range(clients) for u in range(v)}
    total = np.zeros(size, np.uint64)
    for client in range(clients):
        mine = {u + v - client: seed for (u, v), seed in seeds.items() if client in (u, v)}
        total += pair_masks(client, mine, size)
    assert not total.any()


def test_a_mask_is_its_seeds_and_longer_ones_begin_alike():
    seed = bytes(range(32))
    assert np.array_equal(mask(seed, 5), mask(seed, 9)[:5])
    assert not np.array_equal(mask(seed, 5), mask(seed[::-1], 5))
    # The first block of ChaCha20 with an empty counter and nonce, worked out with the cipher of RFC 8439.
    zero = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert mask(bytes(32), 4).astype("<u8").tobytes() == zero


def test_bytes_of_masks_are_uniform():
    counts = np.bincount(np.frombuffer(mask(bytes(32), 2**15).tobytes(), np.uint8), minlength=256)
    expected = 2**18 / 256
    assert ((counts - expected) ** 2 / expected).sum() < 380  # 255 degrees of freedom: 4e-7


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_numbers_come_back_through_the_words(numbers):
    given_ = np.array(numbers, np.int64)
    assert np.array_equal(signed(words(given_) + mask(bytes(32), len(given_)) - mask(bytes(32), len(given_))), given_)


def test_nobody_masks_against_itself():
    with pytest.raises(ValueError, match="itself"):
        pair_masks(1, {1: bytes(32)}, 3)
