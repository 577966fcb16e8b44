"""Differential privacy in parts that know nothing of federation: accounting, noise, mechanisms, ledgers."""

from fedbnn.privacy.account import Account
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
from fedbnn.privacy.clipping import clipped_grid_sum, poisson_batch
from fedbnn.privacy.cost import Budget, Cost, Sampled
from fedbnn.privacy.ledger import Ledger
from fedbnn.privacy.noise import gaussian_noise
from fedbnn.privacy.plan import Plan
from fedbnn.privacy.release_gate import ReleaseGate
from fedbnn.privacy.settings import PrivacySettings
from fedbnn.privacy.simplex import onto_simplex, simplex_sensitivity

__all__ = [
    "Account",
    "Budget",
    "Cost",
    "Guarantee",
    "Ledger",
    "Plan",
    "PrivacySettings",
    "ReleaseGate",
    "Sampled",
    "clipped_grid_sum",
    "composed_mu",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_noise",
    "noise_multiplier",
    "onto_simplex",
    "poisson_batch",
    "simplex_sensitivity",
    "subsampled_epsilon",
    "subsampled_noise",
]
