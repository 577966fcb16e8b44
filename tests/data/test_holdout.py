import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.data.holdout import stratified_holdout


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32 - 1),
)
def test_every_stratum_gives_its_share_and_keeps_a_record(sizes, fraction, seed):
    rng = np.random.default_rng(seed)
    strata = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    count = max(1, round(fraction * len(strata)))
    chosen = stratified_holdout(strata, count, rng)

    assert (np.diff(chosen) > 0).all()
    room = np.array(sizes) - 1
    assert len(chosen) == min(count, room.sum())
    taken = np.bincount(strata[chosen], minlength=len(sizes))
    assert (taken <= room).all()
    quota = count * np.array(sizes) / len(strata)
    assert (taken >= np.minimum(np.floor(quota), room)).all()
    if (np.ceil(quota) <= room).all():
        assert (taken <= np.ceil(quota)).all()


def test_ties_do_not_favour_the_first_strata():
    strata = np.repeat(np.arange(10), 10)
    winners = {tuple(strata[stratified_holdout(strata, 5, np.random.default_rng(seed))].tolist()) for seed in range(20)}
    assert len(winners) > 10
