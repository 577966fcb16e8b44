"""The predictive distribution of a real number: a mixture of Gaussians, one for each weight draw.

For weight draws w_1..w_K, each as likely as the others, and (m_k, v_k) what the network says of x with them:

    p(y | x)   = 1/K sum_k N(y; m_k, v_k)
    mean       = 1/K sum_k m_k
    aleatoric  = 1/K sum_k v_k                    mean of the variances: noise in the data itself
    epistemic  = 1/K sum_k (m_k - mean)^2         variance of the means: what more data would settle
    total      = aleatoric + epistemic            the mixture's variance: the law of total variance
                                                  (Depeweg et al. 2018)

Its continuous ranked probability score is exact (Grimit, Gneiting, Berrocal, Johnson 2006):

    CRPS = 1/K sum_k A(y - m_k, v_k) - 1/(2 K^2) sum_kl A(m_k - m_l, v_k + v_l)
    A(d, v) = 2 s phi(d / s) + d (2 Phi(d / s) - 1),    s = sqrt(v)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbnn.models.bayes.predictive import logits_of
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression.measured import gaussian_of
from fedbnn.models.regression.scale import Scale

_HALVINGS = 100  # of an interval that a quantile lies in: double precision has no more digits


@dataclass(frozen=True)
class Mixture:
    """The distributions of n real numbers.

    Attributes:
        means: K x n.
        variances: K x n.

    """

    means: Tensor
    variances: Tensor

    def to(self, device: torch.device | str) -> "Mixture":
        return Mixture(self.means.to(device), self.variances.to(device))

    def in_units(self, scale: Scale) -> "Mixture":
        """Of standardised targets: the same of targets in their own unit, in double precision."""
        return Mixture(self.means.double() * scale.sd + scale.mean, self.variances.double() * scale.sd**2)

    def where(self, rows: Tensor) -> "Mixture":
        """Of these records alone."""
        return Mixture(self.means[:, rows], self.variances[:, rows])

    @property
    def mean(self) -> Tensor:
        return self.means.mean(0)

    @property
    def aleatoric(self) -> Tensor:
        return self.variances.mean(0)

    @property
    def epistemic(self) -> Tensor:
        return self.means.var(0, correction=0)

    @property
    def total(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @property
    def sd(self) -> Tensor:
        return self.total.sqrt()

    @property
    def finite(self) -> bool:
        return bool(self.means.isfinite().all() and self.variances.isfinite().all())

    @property
    def gaussian(self) -> Tensor:
        """The Gaussian with the mixture's mean and variance, as mean and log variance, n x 2."""
        return torch.stack([self.mean, self.total.log()], 1)

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) of each record."""
        below: Tensor = torch.special.ndtr((y - self.means) / self.variances.sqrt())
        return below.mean(0)

    def quantile(self, share: float) -> Tensor:
        """Where the distribution function is `share`, by halving: it lies between the least and greatest of draws."""
        each = self.means.double() + self.variances.double().sqrt() * _normal_quantile(share)
        double, low, high = Mixture(self.means.double(), self.variances.double()), each.amin(0), each.amax(0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = double.cdf(middle) < share
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def interval(self, share: float) -> tuple[Tensor, Tensor]:
        """The central interval that holds this share of the distribution."""
        return self.quantile((1 - share) / 2), self.quantile((1 + share) / 2)

    def nll(self, y: Tensor) -> Tensor:
        """-log p(y) of each record, in nats."""
        logs = -0.5 * ((2 * math.pi * self.variances).log() + (y - self.means).square() / self.variances)
        return math.log(len(self.means)) - torch.logsumexp(logs, 0)

    def crps(self, y: Tensor) -> Tensor:
        """Of each record, in the target's own unit; of a model without doubt it is the absolute error."""
        apart = self.means[:, None] - self.means[None]
        between = _absolute(apart, self.variances[:, None] + self.variances[None]).mean((0, 1))
        return _absolute(y - self.means, self.variances).mean(0) - between / 2


def _absolute(shift: Tensor, variance: Tensor) -> Tensor:
    """E |N(shift, variance)|."""
    sd = variance.sqrt()
    z = shift / sd
    return 2 * sd * torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi) + shift * torch.erf(z / math.sqrt(2))


def _normal_quantile(share: float) -> float:
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))


@torch.inference_mode()
def mixture_over(network: FlatNetwork, draws: Iterator[Tensor], x: Tensor) -> Mixture:
    """The predictive distribution over the given weight vectors (one vector: a Gaussian), of standardised targets."""
    each: list[tuple[Any, ...]] = [gaussian_of(logits_of(network, weights, x)) for weights in draws]
    means, variances = zip(*each, strict=True)
    return Mixture(torch.stack(means), torch.stack(variances))
