"""Records that are held out for testing: the same share of every stratum, or each by its own hash."""

import numpy as np
from numpy.typing import NDArray

from fedbnn.data.identity import HALF, Identity

SPLIT_SEED = 0  # of no run: all runs are scored on the same records


def stratified_holdout(strata: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Sorted indices of `count` records, n_s * count / n of each stratum s, rounded by largest remainder.

    Ties are broken at random. A stratum never loses its last record, so that a class or a client that
    exists stays in the training pool; where that leaves fewer than `count` records, fewer are returned.
    """
    sizes = np.bincount(strata)
    room = np.maximum(sizes - 1, 0)
    quota = count * sizes / len(strata)
    take = np.minimum(np.floor(quota).astype(np.int64), room)
    while (short := count - int(take.sum())) > 0 and (open_ := np.flatnonzero(take < room)).size:
        order = np.lexsort((rng.random(open_.size), (take - quota)[open_]))
        take[open_[order[:short]]] += 1
    shuffled = rng.permutation(len(strata))
    grouped = shuffled[np.argsort(strata[shuffled], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(strata)) - starts[strata[grouped]]
    return np.sort(grouped[rank < take[strata[grouped]]])


def fixed_split(strata: NDArray[np.int64], test: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and `test` rows held out, the same share of every stratum, the same ones every time."""
    held_out = stratified_holdout(strata, test, np.random.default_rng(SPLIT_SEED))
    return np.setdiff1d(np.arange(len(strata)), held_out), held_out


def own_holdout(identity: Identity, share: float) -> NDArray[np.bool_]:
    """Marks about this share of the records, each by the hash of its own values and by nothing else.

    Where records are under a promise, one of them more must not move others from one half to the other: the promise is
    about all of a site's records, and what leaves is a sum over the half that is trained on.
    """
    numbers = np.ascontiguousarray(identity[:, :HALF]).view(">u8")[:, 0]
    held_out: NDArray[np.bool_] = numbers < np.uint64(share * 2**64)
    return held_out
