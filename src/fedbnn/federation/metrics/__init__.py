"""How good, and how honest, predicted class probabilities are."""

from fedbnn.federation.metrics.confusion import Confusion, confusion
from fedbnn.federation.metrics.detection import auroc
from fedbnn.federation.metrics.reliability import ReliabilityBins, reliability
from fedbnn.federation.metrics.scores import accuracy, brier, nll
from fedbnn.federation.metrics.selective import RankedCounts, ranked_counts
from fedbnn.federation.metrics.uncertainty import UncertaintyHistogram, uncertainty_histogram

__all__ = [
    "Confusion",
    "RankedCounts",
    "ReliabilityBins",
    "UncertaintyHistogram",
    "accuracy",
    "auroc",
    "brier",
    "confusion",
    "nll",
    "ranked_counts",
    "reliability",
    "uncertainty_histogram",
]
