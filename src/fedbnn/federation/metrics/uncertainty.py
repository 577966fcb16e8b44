"""Uncertainty of right against wrong predictions, as a pair of histograms that can be added."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.counts import Counts
from fedbnn.federation.metrics.predictions import Floats, Ints

BINS = 20


@dataclass(frozen=True, eq=False)
class UncertaintyHistogram(Counts):
    """Predictions counted by their uncertainty, as a share of the greatest possible one.

    Attributes:
        edges: 21 borders from 0 (certain) to 1 (every class equally probable).
        right: right predictions in each bin.
        wrong: wrong predictions in each bin.
        pairs: for the wrong ones in each bin, with how many right ones of their client they can be compared.
        won: in how many of these pairs the wrong one is the more uncertain, by its exact value; a tie counts half.
    """

    WHAT = "uncertainty histograms"
    WHOLE = ("right", "wrong")

    right: Ints
    wrong: Ints
    pairs: Floats
    won: Floats

    @property
    def auroc(self) -> float:
        """Chance that a wrong prediction is more uncertain than a right one of the same client.

        The Mann-Whitney statistic of the values themselves, whatever the bins; over clients, that of all pairs within
        a client. nan unless some client has predictions of both kinds.
        """
        pairs = float(self.pairs.sum())
        return float(self.won.sum()) / pairs if pairs else float("nan")


def uncertainty_histogram(values: ArrayLike, right: ArrayLike, classes: int) -> UncertaintyHistogram:
    """Histogram of `values` / ln(classes), clipped to [0, 1], split by whether the prediction is right.

    `values` are entropies or mutual informations in nats, whose greatest value is ln(classes).
    Bins are closed on the left, the last one on both sides (np.histogram).
    """
    u = np.asarray(values, dtype=np.float64)
    hit = np.asarray(right, dtype=np.bool_)
    if u.ndim != 1 or u.shape != hit.shape:
        raise ValueError(f"values and right must both be (n,), got {u.shape} and {hit.shape}")
    if u.size == 0:
        raise ValueError("no uncertainties to count: values is empty")
    if np.isnan(u).any():
        raise ValueError("values holds entries that are not numbers")
    if classes < 2:
        raise ValueError(f"uncertainty needs at least 2 classes, got {classes}")
    edges = np.linspace(0.0, 1.0, BINS + 1)
    share = np.clip(u / np.log(classes), 0.0, 1.0)
    right_values = np.sort(u[hit])
    beaten = (np.searchsorted(right_values, u[~hit], "left") + np.searchsorted(right_values, u[~hit], "right")) / 2
    wrong = np.histogram(share[~hit], edges)[0].astype(np.int64)
    return UncertaintyHistogram(
        edges=edges,
        right=np.histogram(share[hit], edges)[0].astype(np.int64),
        wrong=wrong,
        pairs=wrong.astype(np.float64) * len(right_values),
        won=np.histogram(share[~hit], edges, weights=beaten)[0],
    )
