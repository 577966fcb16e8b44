"""Any t shares give the secret back, exactly; fewer are consistent with every secret."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.privacy.secure.shamir import PRIME, SECRET, SHARE, joined, number, split

SECRETS = st.binary(min_size=SECRET, max_size=SECRET)


def through(points: dict[int, int], x: int) -> int:
    """The polynomial of least degree through these points, at x: Newton's divided differences, not Lagrange's."""
    xs, table = list(points), list(points.values())
    for order in range(1, len(xs)):
        for i in range(len(xs) - 1, order - 1, -1):
            table[i] = (table[i] - table[i - 1]) * pow(xs[i] - xs[i - order], -1, PRIME) % PRIME
    total = 0
    for coefficient, at in zip(reversed(table), reversed(xs), strict=True):
        total = (total * (x - at) + coefficient) % PRIME
    return total


@given(SECRETS, st.integers(1, 12), st.integers(0, 8), st.randoms())
def test_any_t_shares_give_the_secret(secret, threshold, more, rng):
    clients = rng.sample(range(1000), threshold + more)
    shares = split(secret, threshold, clients)
    assert all(len(share) == SHARE for share in shares.values())
    chosen = rng.sample(clients, threshold)
    assert joined({client: shares[client] for client in chosen}) == secret
    assert joined(shares) == secret


@given(SECRETS, SECRETS, st.integers(2, 10), st.randoms())
def test_fewer_are_consistent_with_every_secret(secret, other, threshold, rng):
    shares = split(secret, threshold, range(threshold + 3))
    known = rng.sample(sorted(shares), threshold - 1)
    points = {client + 1: number(shares[client]) for client in known}
    missing = next(client for client in shares if client not in known)
    # With one more share, chosen to fit, the same shares are of any other secret, and that share is the only one.
    fitting = through({0: int.from_bytes(other), **points}, missing + 1)
    found = joined({**{client: shares[client] for client in known}, missing: fitting.to_bytes(SHARE)})
    assert found == other


def test_shares_below_the_threshold_are_uniform():
    """One share of a 2-of-2 sharing, of two very different secrets: its top bits are all equally likely."""
    for secret in (bytes(SECRET), b"\xff" * SECRET):
        counts = [0] * 16
        for _ in range(4000):
            counts[number(split(secret, 2, range(2))[1]) * 16 // PRIME] += 1
        chi2 = sum((count - 250) ** 2 / 250 for count in counts)
        assert chi2 < 60  # 15 degrees of freedom: beyond it with probability 2e-7


def test_the_modulus_is_prime():
    rng = random.Random(0)
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):  # Miller and Rabin
        x = pow(rng.randrange(2, PRIME - 1), odd, PRIME)
        passes = x in (1, PRIME - 1)
        for _ in range(twos - 1):
            x = x * x % PRIME
            passes = passes or x == PRIME - 1
        assert passes
    assert PRIME > 2 ** (8 * SECRET)


def test_wrong_shares_do_not_give_the_secret():
    secret = bytes(range(SECRET))
    shares = split(secret, 3, range(5))
    changed = (number(shares[1]) ^ 1).to_bytes(SHARE)
    try:
        found = joined({0: shares[0], 1: changed, 2: shares[2]})
    except ValueError:
        found = b""
    assert found != secret


@pytest.mark.parametrize(
    ("secret", "threshold", "clients"),
    [(b"short", 1, range(2)), (bytes(32), 0, range(2)), (bytes(32), 3, range(2)), (bytes(32), 1, [-1, 0])],
)
def test_what_cannot_be_shared_is_refused(secret, threshold, clients):
    with pytest.raises(ValueError, match=r"secret|threshold|counted"):
        split(secret, threshold, list(clients))


@pytest.mark.parametrize("share", [b"", bytes(SHARE - 1), PRIME.to_bytes(SHARE), b"\xff" * SHARE])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(ValueError, match="below the prime"):
        number(share)
