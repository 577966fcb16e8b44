"""How good, and how honest, predicted class probabilities are."""

from fedbnn.federation.metrics.detection import auroc
from fedbnn.federation.metrics.reliability import ReliabilityBins, reliability
from fedbnn.federation.metrics.scores import accuracy, brier, nll
from fedbnn.federation.metrics.uncertainty import UncertaintyHistogram, uncertainty_histogram

__all__ = [
    "ReliabilityBins",
    "UncertaintyHistogram",
    "accuracy",
    "auroc",
    "brier",
    "nll",
    "reliability",
    "uncertainty_histogram",
]
