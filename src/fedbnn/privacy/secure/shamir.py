"""Shamir's secret sharing: of n shares any t give the secret back, and fewer say nothing about it.

    f(x) = secret + a_1 x + ... + a_{t-1} x^{t-1}  mod p,   p = 2^256 + 297,   share of client i: f(i + 1)

with a_k uniform below p (Shamir 1979). p is the smallest prime above 2^256, so every secret of 32 bytes is a number
below it; t points give f(0) by Lagrange, and to t - 1 points and any f(0) there is exactly one f. Arithmetic is exact.
"""

import secrets
from collections.abc import Collection, Mapping

PRIME = 2**256 + 297
SECRET = 32  # bytes
SHARE = 34  # bytes: what a number below the prime needs, made even


def split(secret: bytes, threshold: int, clients: Collection[int]) -> dict[int, bytes]:
    """A share for each client, by its index; `threshold` of them give the secret."""
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(clients):
        raise ValueError(f"threshold is {threshold}: must be from 1 to the number of shares, {len(clients)}")
    if min(clients) < 0:
        raise ValueError("clients are counted from 0")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {client: _value(coefficients, client + 1).to_bytes(SHARE) for client in clients}


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as the threshold; from more if all are right.

    Wrong or too few shares give other bytes, or a ValueError where these are more than a secret has.
    """
    weights = _weights(tuple(shares))
    total = sum(weights[client] * number(share) for client, share in shares.items()) % PRIME
    if total >= 2 ** (8 * SECRET):
        raise ValueError("the shares are not of one secret")
    return total.to_bytes(SECRET)


def number(share: bytes) -> int:
    """What a share says; a ValueError if it cannot be one."""
    found = int.from_bytes(share)
    if len(share) != SHARE or found >= PRIME:
        raise ValueError("a share is a number below the prime")
    return found


def _value(coefficients: list[int], x: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % PRIME
    return total


def _weights(clients: tuple[int, ...]) -> dict[int, int]:
    """Lagrange's coefficients at 0."""
    found = {}
    for client in clients:
        above, below = 1, 1
        for other in clients:
            if other != client:
                above = above * (other + 1) % PRIME
                below = below * (other - client) % PRIME
        found[client] = above * pow(below, -1, PRIME) % PRIME
    return found
