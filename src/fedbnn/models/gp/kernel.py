"""The prior of a node's latent function: a Gaussian process with a scaled squared-exponential kernel on the sphere.

    k(a, b) = outputscale * exp(-|a - b|^2 / (2 lengthscale^2)),      |a| = |b| = 1

Embeddings are brought to unit length first (as in pFedGP, Achituve et al. 2021), so |a - b| <= 2 and one lengthscale
suits any network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Kernel:
    """The kernel, and the constant prior mean of f."""

    outputscale: float = 8.0
    lengthscale: float = 1.0
    mean: float = 0.0
    jitter: float = 1e-6  # in units of the outputscale: keeps the covariance of repeated records positive definite

    def cross(self, a: Tensor, b: Tensor) -> Tensor:
        """k(a_i, b_j) [len(a), len(b)]."""
        squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        return self.outputscale * torch.exp(squares.clamp_min(0) / (-2 * self.lengthscale**2))

    def covariance(self, a: Tensor) -> Tensor:
        """k(a_i, a_j) with the jitter on the diagonal: f of a record is f of its embedding plus a speck of noise."""
        return self.cross(a, a) + self.jitter * self.outputscale * torch.eye(len(a), dtype=a.dtype)


def normalise(embeddings: Tensor) -> Tensor:
    """Rows of unit length in double precision; a row of zeros stays zero and gets no gradient.

    (x / max(|x|, eps) would give such a row, the output of a dead ReLU layer, a gradient of size 1 / eps.)
    """
    x = embeddings.double()
    squares = x.square().sum(1, keepdim=True)
    alive = squares > 1e-24
    return torch.where(alive, x * torch.where(alive, squares, 1.0).rsqrt(), 0.0)
