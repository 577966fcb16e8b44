"""Accuracy and the two proper scoring rules, each a mean over predictions."""

import numpy as np
from numpy.typing import ArrayLike

from fedbnn.federation.metrics.predictions import checked

SMALLEST_PROBABILITY = 1e-12


def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Share of predictions whose most probable class is the label (the first one, where several tie)."""
    p, y = checked(probs, labels)
    return float(np.mean(p.argmax(axis=1) == y))


def nll(probs: ArrayLike, labels: ArrayLike) -> float:
    """Negative log-likelihood in nats: mean of -log p_y, with p_y clipped at 1e-12 to stay finite."""
    p, y = checked(probs, labels)
    of_label = p[np.arange(len(y)), y]
    return float(-np.mean(np.log(np.maximum(of_label, SMALLEST_PROBABILITY))))


def brier(probs: ArrayLike, labels: ArrayLike) -> float:
    """Multi-class Brier score (Brier 1950): mean of sum_c (p_c - 1[y = c])^2, from 0 to 2."""
    p, y = checked(probs, labels)
    distance = p.copy()
    distance[np.arange(len(y)), y] -= 1.0
    return float(np.mean(np.sum(distance**2, axis=1)))
