"""How a model is scored: on test records of the client's own classes (the headline), and on all of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fedbnn.federation.metrics import (
    Confusion,
    RankedCounts,
    ReliabilityBins,
    UncertaintyHistogram,
    accuracy,
    auroc,
    brier,
    confusion,
    nll,
    ranked_counts,
    reliability,
    uncertainty_histogram,
)
from fedbnn.federation.metrics.predictions import Floats, Ints
from fedbnn.federation.metrics.reliability import BINS as RELIABILITY_BINS
from fedbnn.federation.metrics.selective import SLICES
from fedbnn.federation.metrics.uncertainty import BINS as UNCERTAINTY_BINS
from fedbnn.federation.regression_evaluation import REGRESSION_SCORES, RegressionEvaluation, evaluate_mixture
from fedbnn.models.bayes import Prediction
from fedbnn.models.regression import Answer, Mixture

_ROUNDING = 1e-3  # of sums in single precision
_MOST_COUNTED = 2**40


@dataclass(frozen=True)
class Measure:
    """What runs are judged by: what it is called, in which unit it is told, and which way is better."""

    title: str
    meaning: str  # in a few more words
    unit: Literal["share", "plain", "target", "bytes", "seconds"] = "plain"  # target: in that of the target
    higher_is_better: bool = False
    brief: str = ""  # the title where room is scarce, if that is another one
    aim: float | None = None  # what it should be, where neither more nor less is better
    ranked: bool = True  # whether models can be ranked by it alone

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
    "attack_success": Measure("attack success", "of marked records that get the attackers' class", "share"),
    "rmse": Measure("RMSE", "root mean squared error, in the target's unit", "target"),
    "mae": Measure("MAE", "mean absolute error, in the target's unit", "target"),
    "crps": Measure("CRPS", "continuous ranked probability score, in the target's unit", "target"),
    "coverage_90": Measure("coverage", "of central 90 % intervals; 90 % is right", "share", aim=0.9),
    "width_90": Measure("width", "of central 90 % intervals, in the target's unit", "target", ranked=False),
    "bytes_up_per_client_round": Measure("sent", "by a client in a round", "bytes", brief="bytes up"),
    "bytes_down_per_client_round": Measure("received", "by a client in a round", "bytes", brief="bytes down"),
    "seconds": Measure("time", "for the whole run", "seconds", brief="seconds"),
}
"""By the field of result.json."""

SCORES = ("own_class_accuracy", "all_class_accuracy", "nll", "brier", "ece", "mce", "all_class_nll")
ALL_SCORES = (*SCORES, *(name for name in REGRESSION_SCORES if name not in SCORES))
"""Of classification and of regression."""
DETECTION = ("ood_auroc_epistemic", "ood_auroc_total")
ATTACK_SUCCESS = "attack_success"
"""Of a backdoor, where one is simulated (`fedbnn.federation.backdoor`)."""
SOMETIMES = (*DETECTION, ATTACK_SUCCESS)
"""Scores that only runs have that ask for them."""
MOST = dict.fromkeys((*SCORES, *SOMETIMES), 1.0) | {"nll": 30.0, "all_class_nll": 30.0, "brier": 2.0}
"""The greatest value of each, the least is 0; of a negative log-likelihood, the smallest probability gives 27.6."""
COSTS = ("bytes_up_per_client_round", "bytes_down_per_client_round", "seconds")
"""What a run takes, whichever of its models is scored."""
PARTS = {"scores", "reliability", "total", "epistemic", "ranked", "confusion"}
"""Of an evaluation as it is sent; where there are too many classes, without confusion."""
POOLED = ("ece", "mce")
"""Scores of all clients' predictions together, not means over clients."""


@dataclass(frozen=True)
class Evaluation:
    """One client's scores. All but the two named all_class_* are on the client's own classes."""

    scores: dict[str, float]  # by the names in SCORES and, where they were asked for, in SOMETIMES
    reliability: ReliabilityBins = field(repr=False)
    total: UncertaintyHistogram = field(repr=False)
    epistemic: UncertaintyHistogram = field(repr=False)
    ranked: RankedCounts = field(repr=False)
    confusion: Confusion | None = field(repr=False)  # None: of too many classes

    def to_dict(self) -> dict[str, Any]:
        return {
            "scores": self.scores,
            "reliability": self.reliability.to_dict(),
            "total": self.total.to_dict(),
            "epistemic": self.epistemic.to_dict(),
            "ranked": self.ranked.to_dict(),
            **({} if self.confusion is None else {"confusion": self.confusion.to_list()}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Evaluation":
        """What `to_dict` gave, also by way of JSON; ValueError for anything else, whoever made it."""
        if not isinstance(data, Mapping) or {*data, "confusion"} != PARTS:
            raise ValueError(f"an evaluation has {', '.join(sorted(PARTS))}")
        bins = ReliabilityBins.from_dict(data["reliability"])
        total, epistemic = (UncertaintyHistogram.from_dict(data[name]) for name in ("total", "epistemic"))
        _check_bins(bins)
        for histogram in (total, epistemic):
            _check_counts(histogram.edges, UNCERTAINTY_BINS, histogram.right, histogram.wrong)
            if not np.array_equal(histogram.pairs, histogram.wrong * float(histogram.right.sum())):
                raise ValueError("pairs are not all pairs of a right and a wrong prediction")
            if not ((histogram.won >= 0) & (histogram.won <= histogram.pairs)).all():
                raise ValueError("won is not between 0 and the number of pairs")
        ranked = RankedCounts.from_dict(data["ranked"])
        _check_counts(ranked.edges, SLICES, ranked.count, ranked.correct)
        matrix = Confusion.from_list(data["confusion"]) if "confusion" in data else None
        _check_same(bins, ranked, matrix)
        return cls(_checked_scores(data["scores"]), bins, total, epistemic, ranked, matrix)


def _checked_scores(scores: object) -> dict[str, float]:
    if not isinstance(scores, dict) or not set(SCORES) <= scores.keys() <= MOST.keys():
        raise ValueError("scores are not those that are known")
    for name, value in scores.items():
        if type(value) not in (int, float) or not -_ROUNDING <= value <= MOST[name] + _ROUNDING:
            raise ValueError(f"{name} is not between 0 and {MOST[name]:g}")
    return {name: float(value) for name, value in scores.items()}


def _check_same(bins: ReliabilityBins, ranked: RankedCounts, matrix: Confusion | None) -> None:
    """All three count the same predictions, and the same of them as right."""
    counted = [
        (int(bins.count.sum()), int(bins.correct_sum.sum())),
        (int(ranked.count.sum()), int(ranked.correct.sum())),
    ]
    if matrix is not None:
        counted.append((int(matrix.counts.sum()), int(np.trace(matrix.counts))))
    if len(set(counted)) > 1 or (ranked.correct > ranked.count).any():
        raise ValueError("reliability, ranked and confusion do not count the same predictions")


def _check_bins(bins: ReliabilityBins) -> None:
    _check_counts(bins.edges, RELIABILITY_BINS, bins.count, bins.correct_sum)
    inside = (bins.confidence_sum >= 0) & (bins.confidence_sum <= bins.count * (1 + _ROUNDING))
    if not inside.all() or (bins.correct_sum > bins.count).any():
        raise ValueError("reliability bins hold more than they count")


def _check_counts(edges: Floats, bins: int, *counts: Ints) -> None:
    """Those of all clients are added: they must have the same edges, and a sum."""
    if not np.array_equal(edges, np.linspace(0.0, 1.0, bins + 1)):
        raise ValueError(f"their {bins} bins do not divide 0 to 1 evenly")
    if any(((count < 0) | (count > _MOST_COUNTED)).any() for count in counts):
        raise ValueError(f"a count is not between 0 and {_MOST_COUNTED}")


Scored = Evaluation | RegressionEvaluation
"""One client's scores, in classification or in regression."""


def scored_from(data: Mapping[str, Any]) -> Scored:
    """What `to_dict` of either gave, also by way of JSON; ValueError for anything else, whoever made it."""
    return scored_as(data, regression=isinstance(data, Mapping) and "pit" in data)


def scored_as(data: Mapping[str, Any], *, regression: bool) -> Scored:
    """The same where the task is known: ValueError for scores of the other one, too."""
    return RegressionEvaluation.from_dict(data) if regression else Evaluation.from_dict(data)


def task_scores(*, regression: bool) -> tuple[str, ...]:
    """The scores of a task."""
    return REGRESSION_SCORES if regression else SCORES


def scores_among(names: Collection[str]) -> tuple[str, ...]:
    """The scores of the task that these are of."""
    return task_scores(regression="crps" in names)


def headline(variants: Mapping[str, Scored]) -> Scored:
    """The evaluation of the model that a method is judged by: the first it names."""
    return next(iter(variants.values()))


def evaluate(prediction: Answer, labels: Tensor, own: Tensor) -> Scored:
    """Score a prediction; `own` marks the records that are the client's concern."""
    if isinstance(prediction, Mixture):
        return evaluate_mixture(prediction, labels, own)
    return evaluate_classes(prediction, labels, own)


def evaluate_classes(prediction: Prediction, labels: Tensor, own: Tensor) -> Evaluation:
    """Score class probabilities; `own` marks the records of the client's own classes."""
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
        ranked_counts(own_probs, own_y),
        confusion(own_probs, own_y),
    )


def with_detection(evaluation: Scored, prediction: Answer, own: Tensor, foreign: Answer) -> Scored:
    """The same with the scores of DETECTION: how well uncertainty tells foreign inputs from the client's own records.

    Each is an AUROC: 1 where every foreign input is less certain than every own record, 0.5 by chance, and so for the
    epistemic part of a model without weight draws, which is 0 for all.
    """
    epistemic = auroc(prediction.epistemic[own].numpy(), foreign.epistemic.numpy())
    total = auroc(prediction.total[own].numpy(), foreign.total.numpy())
    scores = evaluation.scores | dict(zip(DETECTION, (epistemic, total), strict=True))
    return replace(evaluation, scores=scores)
