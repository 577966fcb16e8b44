"""How a model is scored: on test records of the client's own classes (the headline), and on all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedbnn.federation.metrics import (
    ReliabilityBins,
    UncertaintyHistogram,
    accuracy,
    auroc,
    brier,
    nll,
    reliability,
    uncertainty_histogram,
)
from fedbnn.models.bayes import Prediction


@dataclass(frozen=True)
class Measure:
    """What runs are judged by: what it is called, in which unit it is told, and which way is better."""

    title: str
    meaning: str  # in a few more words
    unit: Literal["share", "plain", "bytes", "seconds"] = "plain"
    higher_is_better: bool = False
    brief: str = ""  # the title where room is scarce, if that is another one

    @property
    def heading(self) -> str:
        """The title at the beginning of a line."""
        return self.title[0].upper() + self.title[1:]


MEASURES: dict[str, Measure] = {
    "own_class_accuracy": Measure("own-class accuracy", "on the classes a client holds", "share", True),
    "all_class_accuracy": Measure("all-class accuracy", "also on classes it never saw", "share", True),
    "nll": Measure("NLL", "negative log-likelihood, in nats"),
    "brier": Measure("Brier score", "squared error, from 0 to 2"),
    "ece": Measure("ECE", "mean gap of confidence and accuracy"),
    "mce": Measure("MCE", "greatest gap of any bin"),
    "all_class_nll": Measure("all-class NLL", "also on classes it never saw"),
    "ood_auroc_epistemic": Measure(
        "AUROC, epistemic uncertainty", "of foreign inputs; 0.5 is chance", higher_is_better=True
    ),
    "ood_auroc_total": Measure("AUROC, total uncertainty", "of foreign inputs; 0.5 is chance", higher_is_better=True),
    "bytes_up_per_client_round": Measure("sent", "by a client in a round", "bytes", brief="bytes up"),
    "bytes_down_per_client_round": Measure("received", "by a client in a round", "bytes", brief="bytes down"),
    "seconds": Measure("time", "for the whole run", "seconds", brief="seconds"),
}
"""By the field of result.json."""

SCORES = ("own_class_accuracy", "all_class_accuracy", "nll", "brier", "ece", "mce", "all_class_nll")
DETECTION = ("ood_auroc_epistemic", "ood_auroc_total")
COSTS = ("bytes_up_per_client_round", "bytes_down_per_client_round", "seconds")
"""What a run takes, whichever of its models is scored."""
POOLED = ("ece", "mce")
"""Scores of all clients' predictions together, not means over clients."""


@dataclass(frozen=True)
class Evaluation:
    """One client's scores. All but the two named all_class_* are on the client's own classes."""

    scores: dict[str, float]  # by the names in SCORES and, where foreign inputs were asked about, in DETECTION
    reliability: ReliabilityBins
    total: UncertaintyHistogram
    epistemic: UncertaintyHistogram

    def to_dict(self) -> dict[str, Any]:
        return {
            "scores": self.scores,
            "reliability": self.reliability.to_dict(),
            "total": self.total.to_dict(),
            "epistemic": self.epistemic.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Evaluation":
        return cls(
            data["scores"],
            ReliabilityBins.from_dict(data["reliability"]),
            UncertaintyHistogram.from_dict(data["total"]),
            UncertaintyHistogram.from_dict(data["epistemic"]),
        )


def headline(variants: Mapping[str, Evaluation]) -> Evaluation:
    """The evaluation of the model that a method is judged by: the first it names."""
    return next(iter(variants.values()))


def evaluate(prediction: Prediction, labels: Tensor, own: Tensor) -> Evaluation:
    """Score a prediction; `own` marks the records of the client's own classes."""
    probs, y, mine = prediction.probs.numpy(), labels.numpy(), own.numpy()
    own_probs, own_y = probs[mine], y[mine]
    bins = reliability(own_probs, own_y)
    right = own_probs.argmax(1) == own_y
    classes = probs.shape[1]
    return Evaluation(
        {
            "own_class_accuracy": accuracy(own_probs, own_y),
            "all_class_accuracy": accuracy(probs, y),
            "nll": nll(own_probs, own_y),
            "brier": brier(own_probs, own_y),
            "ece": bins.ece,
            "mce": bins.mce,
            "all_class_nll": nll(probs, y),
        },
        bins,
        uncertainty_histogram(prediction.total.numpy()[mine], right, classes),
        uncertainty_histogram(prediction.epistemic.numpy()[mine], right, classes),
    )


def with_detection(evaluation: Evaluation, prediction: Prediction, own: Tensor, foreign: Prediction) -> Evaluation:
    """The same with the scores of DETECTION: how well uncertainty tells foreign inputs from records of own classes.

    Each is an AUROC: 1 where every foreign input is less certain than every own record, 0.5 by chance, and so for the
    epistemic part of a model without weight draws, which is 0 for all.
    """
    epistemic = auroc(prediction.epistemic[own].numpy(), foreign.epistemic.numpy())
    total = auroc(prediction.total[own].numpy(), foreign.total.numpy())
    scores = evaluation.scores | dict(zip(DETECTION, (epistemic, total), strict=True))
    return replace(evaluation, scores=scores)
