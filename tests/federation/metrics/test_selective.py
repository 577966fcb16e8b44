import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.federation.metrics import accuracy
from fedbnn.federation.metrics.selective import RankedCounts, ranked_counts


def predictions(seed, n, classes=3):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), n), rng.integers(0, classes, n)


@given(st.integers(0, 99), st.integers(1, 90))
def test_slices_hold_the_most_certain_first(seed, n):
    p, y = predictions(seed, n)
    counts = ranked_counts(p, y)
    assert counts.count.sum() == n
    assert counts.accuracy[-1] == pytest.approx(accuracy(p, y))
    assert counts.coverage[-1] == 1
    sure = np.sort(p.max(1))[::-1]
    for done in range(1, 21):
        m = int(counts.count[:done].sum())
        assert m == -(-n * done // 20)  # the most certain n * done / 20, rounded up
        if m:
            kept = p.max(1) >= sure[m - 1]
            assert counts.accuracy[done - 1] == pytest.approx(accuracy(p[kept], y[kept]))


def test_counts_of_clients_add_up():
    (one, a), (other, b) = predictions(0, 40), predictions(1, 60)
    both = ranked_counts(one, a) + ranked_counts(other, b)
    assert both.accuracy[-1] == pytest.approx(accuracy(np.concatenate([one, other]), np.concatenate([a, b])))
    again = RankedCounts.from_dict(both.to_dict())
    assert np.array_equal(again.count, both.count)
    assert np.array_equal(again.correct, both.correct)


def test_a_tie_never_flatters():
    p = np.tile([0.7, 0.3], (20, 1))
    y = np.arange(20) % 2  # half of them right
    assert ranked_counts(p, y).accuracy[9] == 0
    assert ranked_counts(p, y).accuracy[-1] == 0.5
