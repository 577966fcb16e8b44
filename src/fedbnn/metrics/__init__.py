"""How good, and how honest, predicted class probabilities are."""

from fedbnn.metrics.detection import auroc
from fedbnn.metrics.reliability import ReliabilityBins, reliability
from fedbnn.metrics.scores import accuracy, brier, nll
from fedbnn.metrics.uncertainty import UncertaintyHistogram, uncertainty_histogram

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
