"""How a model of a real number is scored, on the test records that are a client's concern.

RMSE and MAE are of the predictive mean. NLL and CRPS are proper: no distribution but the true one does better on
average (Gneiting, Raftery 2007). Coverage is the share of targets within the central 90 % of what was predicted, to be
read with the width of these intervals. All but coverage and NLL are in the target's own unit; NLL is of a density in
it, so another unit moves it by a constant.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedbnn.federation.metrics.predictions import Floats
from fedbnn.federation.metrics.regression import BINS, PitCounts, mae, pit_counts, rmse
from fedbnn.models.regression import Mixture

REGRESSION_SCORES = ("rmse", "mae", "nll", "crps", "coverage_90", "width_90")
SHARE = 0.9  # of the intervals whose coverage is scored
PARTS = {"scores", "pit"}
_DETECTION = {"ood_auroc_epistemic", "ood_auroc_total"}
_MOST_COUNTED = 2**40
_MOST = 1e30  # of a score, either way


@dataclass(frozen=True)
class RegressionEvaluation:
    """One client's scores."""

    scores: dict[str, float]  # by the names above and, where foreign inputs were asked about, those of DETECTION
    pit: PitCounts = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        return {"scores": self.scores, "pit": self.pit.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RegressionEvaluation":
        """What `to_dict` gave, also by way of JSON; ValueError for anything else, whoever made it."""
        if not isinstance(data, Mapping) or set(data) != PARTS:
            raise ValueError(f"an evaluation has {', '.join(sorted(PARTS))}")
        pit = PitCounts.from_dict(data["pit"])
        if not np.array_equal(pit.edges, np.linspace(0.0, 1.0, BINS + 1)):
            raise ValueError(f"their {BINS} bins do not divide 0 to 1 evenly")
        if ((pit.count < 0) | (pit.count > _MOST_COUNTED)).any():
            raise ValueError(f"a count is not between 0 and {_MOST_COUNTED}")
        return cls(_checked(data["scores"]), pit)


def _checked(scores: object) -> dict[str, float]:
    known = {*REGRESSION_SCORES, *_DETECTION}
    if not isinstance(scores, dict) or not set(REGRESSION_SCORES) <= scores.keys() <= known:
        raise ValueError("scores are not those that are known")
    for name, value in scores.items():
        least, most = -_MOST if name == "nll" else 0.0, 1.0 if name in {"coverage_90", *_DETECTION} else _MOST
        if type(value) not in (int, float) or not (math.isfinite(value) and least <= value <= most):
            raise ValueError(f"{name} is not between {least:g} and {most:g}")
    return {name: float(value) for name, value in scores.items()}


def evaluate_mixture(prediction: Mixture, targets: Tensor, own: Tensor) -> RegressionEvaluation:
    """Score what was predicted in the target's own unit; `own` marks the records that are the client's concern."""
    mine, y = prediction.where(own), targets[own].double()
    low, high = mine.interval(SHARE)
    inside: Floats = ((low <= y) & (y <= high)).double().numpy()
    return RegressionEvaluation(
        {
            "rmse": rmse(mine.mean.numpy(), y.numpy()),
            "mae": mae(mine.mean.numpy(), y.numpy()),
            "nll": float(mine.nll(y).mean()),
            "crps": float(mine.crps(y).mean()),
            "coverage_90": float(inside.mean()),
            "width_90": float((high - low).mean()),
        },
        pit_counts(mine.cdf(y).clamp(0, 1).numpy()),
    )
