"""Class distributions as points of the probability simplex: their distance is bounded, that of logits is not."""

import math

import torch
from torch import Tensor


def simplex_sensitivity(points: int) -> float:
    """How far one record can move `points` class distributions together, in Euclidean norm: sqrt(2) each."""
    return math.sqrt(2 * points)


def onto_simplex(rows: Tensor) -> Tensor:
    """Each row's nearest point of the probability simplex (Held, Wolfe, Crowder 1974); uniform if it is not finite."""
    classes = rows.shape[1]
    rows = torch.where(rows.isfinite().all(1, keepdim=True), rows.double(), 1 / classes)
    # A constant changes nothing, nor does what lies more than one below the largest: huge numbers must not eat the one.
    rows = (rows - rows.max(1, keepdim=True).values).clamp_min(-2.0)
    ordered = rows.sort(dim=1, descending=True).values
    surplus = (ordered.cumsum(1) - 1) / torch.arange(1, classes + 1)
    kept = (ordered > surplus).sum(1, keepdim=True)
    return (rows - surplus.gather(1, kept - 1)).clamp_min_(0)
