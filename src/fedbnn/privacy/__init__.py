"""Differential privacy in parts that know nothing of federation: accounting, noise, clipped gradients."""

from fedbnn.privacy.accountant import (
    Guarantee,
    composed_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    noise_multiplier,
    subsampled_epsilon,
    subsampled_noise,
)
from fedbnn.privacy.clipping import clipped_sum, poisson_batch
from fedbnn.privacy.noise import gaussian_noise

__all__ = [
    "Guarantee",
    "clipped_sum",
    "composed_mu",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_noise",
    "noise_multiplier",
    "poisson_batch",
    "subsampled_epsilon",
    "subsampled_noise",
]
