"""What the scores are called, which way is better, and how they are written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedbnn.report.figures import MISSING, Spread


@dataclass(frozen=True)
class Score:
    """A score in words; shares are shown in percent."""

    title: str
    percent: bool = False
    higher: bool = False

    @property
    def heading(self) -> str:
        return f"{self.title}, %" if self.percent else self.title

    def show(self, values: Sequence[float]) -> str:
        """The mean, with ± the standard deviation where there are several values."""
        over = Spread.of(values)
        if math.isnan(over.mean):
            return MISSING
        factor, decimals = (100.0, 1) if self.percent else (1.0, 3)
        text = f"{over.mean * factor:.{decimals}f}"
        return text if math.isnan(over.deviation) else f"{text} ± {over.deviation * factor:.{decimals}f}"


KINDS: dict[str, Score] = {
    "own_class_accuracy": Score("own-class accuracy", percent=True, higher=True),
    "all_class_accuracy": Score("all-class accuracy", percent=True, higher=True),
    "nll": Score("NLL"),
    "brier": Score("Brier score"),
    "ece": Score("ECE"),
    "mce": Score("MCE"),
    "all_class_nll": Score("all-class NLL"),
    "ood_auroc_epistemic": Score("AUROC, epistemic uncertainty", higher=True),
    "ood_auroc_total": Score("AUROC, total uncertainty", higher=True),
}
