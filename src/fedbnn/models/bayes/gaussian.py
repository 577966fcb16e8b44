"""A mean-field (diagonal) Gaussian over the weights of a network, and its Kullback-Leibler divergence.

w_k ~ N(mu_k, sigma_k^2) with sigma_k = softplus(rho_k) = log(1 + exp(rho_k))   (Blundell et al. 2015)

A weight that is known, sigma_k = 0, has no part in any divergence: it is a parameter of the model, and not uncertain.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_KNOWN = -200.0  # a rho whose softplus is exactly zero in single precision, and a number that files can hold


@dataclass(frozen=True)
class Gaussian:
    """The distribution, as one flat buffer `theta` = [mu | rho]."""

    theta: Tensor

    @property
    def mean(self) -> Tensor:
        return self.theta[: len(self.theta) // 2]

    @property
    def rho(self) -> Tensor:
        return self.theta[len(self.theta) // 2 :]

    @property
    def sd(self) -> Tensor:
        return functional.softplus(self.rho)

    @classmethod
    def around(cls, mean: Tensor, rho: float) -> "Gaussian":
        """The same standard deviation softplus(rho) for every weight."""
        return cls(torch.cat([mean, torch.full_like(mean, rho)]))

    @classmethod
    def isotropic(cls, size: int, sd: float, device: torch.device | str = "cpu") -> "Gaussian":
        """N(0, sd^2) on every weight: the prior of a client before any consensus."""
        return cls.around(torch.zeros(size, device=device), inverse_softplus(sd))

    def known_at(self, places: Tensor) -> "Gaussian":
        """The same, and at these places no spread at all."""
        return Gaussian(torch.cat([self.mean, self.rho.masked_fill(places.to(self.rho.device), _KNOWN)]))

    def with_sd_at_least(self, floor: float) -> "Gaussian":
        """The same means, and no standard deviation below `floor`."""
        return Gaussian(torch.cat([self.mean, self.rho.clamp_min(inverse_softplus(floor))]))


def inverse_softplus(sd: float) -> float:
    """The rho with softplus(rho) = sd, for sd > 0."""
    return sd + math.log(-math.expm1(-sd))


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """KL[q || p] = sum_k log(s_p / s_q) + (s_q^2 + (m_q - m_p)^2) / (2 s_p^2) - 1/2, over k with s_q > 0."""
    ratio = q.sd / p.sd
    shift = (q.mean - p.mean) / p.sd
    each = -ratio.log() + 0.5 * (ratio.square() + shift.square() - 1)
    return torch.where(q.sd > 0, each, 0.0).sum()
