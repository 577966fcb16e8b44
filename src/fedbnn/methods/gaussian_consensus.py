"""How the server joins Gaussians on the alignment set into one: the consensus in regression.

A client sends the mean m_j and the log variance of what it predicts at each point; its variance v_j is the whole one,
noise and doubt, so that who knows little of a point has little to say there. With powers a_j that sum to one (1/N):

- by precision: prod_j N(y; m_j, v_j)^a_j, renormalised, which is N(m, v) with

      1 / v = sum_j a_j / v_j,        m = v sum_j a_j m_j / v_j

  the logarithmic opinion pool (Genest, Zidek 1986): the mean of log densities, as `mean_logits` is for classes. Powers
  sum to one, not to N: N clients who agree are as sure as one of them. A plain product of experts would be N times as
  sure, as if each had seen other records of one and the same noise.

- mean_probabilities: sum_j a_j N(y; m_j, v_j) by its mean and variance, the linear pool: where clients disagree, v has
  the spread of their means as well.

The target of client i mixes the consensus with its own output by the same rule and the powers gamma and 1 - gamma.
"""

import math

import torch
from torch import Tensor

from fedbnn.methods.consensus import Rule

LEAST, MOST = math.log(1e-6), math.log(1e6)  # of a log variance; beyond them only a client is that is broken or lies


def pool(gaussians: Tensor, powers: Tensor, rule: Rule) -> Tensor:
    """One Gaussian of several, j x points x 2, as mean and log variance, points x 2."""
    means, logs = gaussians.double().unbind(2)
    variances = logs.clamp(LEAST, MOST).exp()
    shares = (powers.double() / powers.sum()).to(means.device).unsqueeze(1)
    if rule == "mean_probabilities":
        mean = (shares * means).sum(0)
        variance = (shares * (variances + (means - mean).square())).sum(0)
    else:
        weighted = shares / variances
        variance = 1 / weighted.sum(0)
        mean = (weighted * means).sum(0) * variance
    return torch.stack([mean, variance.log().clamp(LEAST, MOST)], 1).float()


def join_gaussians(phi: Tensor, rule: Rule) -> Tensor:
    """The consensus of N clients' outputs, N x points x 2; every client weighs the same."""
    return pool(phi, torch.ones(len(phi)), rule)


def gaussian_target(consensus: Tensor, own: Tensor, gamma: float, rule: Rule) -> Tensor:
    """The corrected target: the consensus to the power of gamma, the client's own output to that of 1 - gamma."""
    return pool(torch.stack([consensus, own]), torch.tensor([gamma, 1 - gamma]), rule)
