"""What a client's model says of a real number: a mean, how unsure the model is and why, and intervals."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.federation.calibrated import Wish
from fedbnn.models.conformal import Floats
from fedbnn.models.regression import Mixture
from fedbnn.models.regression.intervals import ConformalIntervals
from fedbnn.models.training import Records

SHARE = 0.9  # of the predicted distribution, within the interval that the model itself gives
SPREADS = ("sd", "epistemic", "aleatoric")
FOREIGN = "foreign"  # unlike anything in the alignment set


@dataclass(frozen=True)
class SiteEstimate:
    """Estimates of one client's model for some records, in the target's own unit.

    `prediction` has variances; what is told are standard deviations, `sd` the whole one and its two parts, whose
    squares add up to its square. `low` and `high` are the central 90 % of what the model predicts. Where it was asked
    for, `promised` has intervals that hold the true number as often as was wished, by `conformal`, of whose records
    `doubtful` equal training records. `novelty`, `ids` and `wrong` are as in `SitePrediction`.
    """

    site: str
    run: str
    method: str
    target: str
    prediction: Mixture
    novelty: Tensor
    conformal: ConformalIntervals | None = None
    doubtful: int = 0
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    wrong: Sequence[str] = ()

    @property
    def promised(self) -> tuple[Floats, Floats] | None:
        """Ends of the intervals that were asked for."""
        mean, sd = self.prediction.mean.numpy(), self.prediction.sd.numpy()
        return None if self.conformal is None else self.conformal.intervals(mean, sd)

    @property
    def promises(self) -> list[str]:
        """What holds for these, in words."""
        if (rule := self.conformal) is None:
            return []
        words = (
            f"Intervals hold the true number of at least {1 - rule.alpha:.4g} of new records like the {rule.records} "
            "for calibration"
        )
        likely = rule.likely_coverage()
        told = "these are too few to leave any number out"
        if likely is not None:
            told = f"with these very ones, between {likely[0]:.3f} and {likely[1]:.3f}"
        doubt = [f"{self.doubtful} of them equal training records: nothing is promised if they are the same"]
        return [f"{words}; {told}", *(doubt if self.doubtful else [])]

    @property
    def flags(self) -> list[tuple[str, ...]]:
        """What speaks against trusting the answer to each record."""
        wrong = self.wrong or [""] * len(self.novelty)
        return [
            ((FOREIGN,) if far > 1 else ()) + ((value,) if value else ())
            for far, value in zip(self.novelty.tolist(), wrong, strict=True)
        ]

    @property
    def numbers(self) -> dict[str, Floats]:
        """Columns of numbers, one entry a record."""
        said = self.prediction
        low, high = said.interval(SHARE)
        told = {
            "mean": said.mean,
            "sd": said.sd,
            "epistemic": said.epistemic.sqrt(),
            "aleatoric": said.aleatoric.sqrt(),
            "low": low,
            "high": high,
        }
        columns = {name: one.double().numpy() for name, one in told.items()}
        if self.promised is not None:
            columns["promised_low"], columns["promised_high"] = self.promised
        return columns | {"novelty": self.novelty.double().numpy()}

    def to_dict(self) -> dict[str, Any]:
        columns = {name: [_finite(one) for one in values.tolist()] for name, values in self.numbers.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        ids = [dict(zip(self.ids, row, strict=True)) for row in zip(*self.ids.values(), strict=True)]
        told: dict[str, Any] = {}
        if (rule := self.conformal) is not None:
            told["promise"] = {
                "in_words": self.promises,
                "alpha": rule.alpha,
                "records": rule.records,
                "threshold": _finite(rule.threshold),
                "likely_coverage": rule.likely_coverage(),
            }
        return {
            "site": self.site,
            "run": self.run,
            "method": self.method,
            "target": self.target,
            **told,
            "records": [
                {**row, "flags": list(flags), **({"ids": ids[at]} if ids else {})}
                for at, (row, flags) in enumerate(zip(rows, self.flags, strict=True))
            ],
        }

    def to_csv(self) -> str:
        """Columns of ids, then of numbers, then the flags, divided by semicolons."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        columns = self.numbers
        writer.writerow([*self.ids, *columns, "flags"])
        ids = list(zip(*self.ids.values(), strict=True)) or [()] * len(self.novelty)
        for own, row, flags in zip(ids, zip(*columns.values(), strict=True), self.flags, strict=True):
            written = ["" if _finite(number) is None else f"{number:.9g}" for number in row]
            writer.writerow([*own, *written, "; ".join(flags)])
        return stream.getvalue()

    def to_npz(self) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, target=np.array(self.target), **self.numbers)
        return stream.getvalue()


def fitted(known: Mixture, records: Records, alpha: float) -> ConformalIntervals:
    """The rule of intervals by what a model says of records that no training saw."""
    return ConformalIntervals.fit(known.mean.numpy(), known.sd.numpy(), records.y.numpy(), alpha)


def check_wish(wish: Wish, prior: object) -> None:
    """Refuse what is asked of classes."""
    asked = {"prior": prior is not None, "abstention (risk)": wish.risk is not None, "by class": wish.within == "class"}
    for name, wanted in asked.items():
        if wanted:
            raise UserError(f"{name}: it is for classification, but data.task = 'regression'")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
