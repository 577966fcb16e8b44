"""Bayesian neural networks: a mean-field posterior over any torch module, priors in function space, prediction."""

from fedbnn.models.bayes.fit import Anchor, VariationalStep, fit
from fedbnn.models.bayes.gaussian import Gaussian, inverse_softplus, kl_divergence
from fedbnn.models.bayes.predictive import Prediction, average, entropy, logits_of, predict, weight_draws
from fedbnn.models.bayes.prior import tune_prior

__all__ = [
    "Anchor",
    "Gaussian",
    "Prediction",
    "VariationalStep",
    "average",
    "entropy",
    "fit",
    "inverse_softplus",
    "kl_divergence",
    "logits_of",
    "predict",
    "tune_prior",
    "weight_draws",
]
