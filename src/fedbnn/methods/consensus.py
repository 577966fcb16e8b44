"""How the server joins the clients' outputs on the alignment set into one consensus.

phi is a stack of N clients' outputs, N x points x classes, and w a weight per client that sums to one.

- mean_logits           sum_j w_j phi_j                                  (Makhija, Ghosh, Ho 2023)
- mean_probabilities    sum_j w_j p_j
- corrected             m(x) = sum_j w_j p_j(x); divide m_c by its average over the alignment set, renormalise,
                        raise to a power and renormalise. A class that few clients hold has a small mean probability
                        everywhere; dividing by its average undoes that without knowing who holds what. It assumes
                        that the classes of the alignment set are roughly balanced.

Clients send logits for `mean_logits` and probabilities for the other two; the consensus is of the same kind.
"""

from typing import Literal

import torch
from torch import Tensor

from fedbnn.bayes import Prediction

Rule = Literal["mean_logits", "mean_probabilities", "corrected"]
Weights = Literal["uniform", "data", "compute"]


def output_of(prediction: Prediction, rule: Rule) -> Tensor:
    """What a client sends under this rule."""
    return prediction.logits if rule == "mean_logits" else prediction.probs


def target_of(consensus: Tensor, own: Tensor, gamma: float, rule: Rule) -> Tensor:
    """The corrected target gamma * consensus + (1 - gamma) * own, as class probabilities."""
    mixed = gamma * consensus + (1 - gamma) * own
    return mixed.softmax(1) if rule == "mean_logits" else mixed


def join(phi: Tensor, weights: Tensor, rule: Rule, power: float) -> Tensor:
    """The consensus, points x classes."""
    mean = torch.einsum("j,jnc->nc", weights / weights.sum(), phi)
    if rule != "corrected":
        return mean
    even = mean / mean.mean(0).clamp_min(1e-12)
    sharp = (even / even.sum(1, keepdim=True)).pow(power)
    return sharp / sharp.sum(1, keepdim=True)
