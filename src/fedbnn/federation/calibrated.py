"""What may be promised of a client's predictions: sets of classes and abstention, from records that no training saw.

The promise is for new records that are exchangeable with these: of the same client, as if drawn from the same urn. The
model, its variant and its label prior are the same for both. So a prior that is estimated from the new records is
refused: it would depend on them and not on the others.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.federation.parties import Client
from fedbnn.models.abstention import CONFIDENCE, Abstention, check_risk, choose
from fedbnn.models.bayes import Prediction
from fedbnn.models.conformal import Bools, Conformal, Score, Within, check_alpha, check_score
from fedbnn.models.training import Records

NEEDED = (
    "prediction sets and abstention need labelled records that no training saw: set data.calibration above 0 before a "
    "run, or give a file of such records (--calibration)"
)


@dataclass(frozen=True)
class Wish:
    """What is asked for beside probabilities.

    Attributes:
        alpha: how often a set of classes may miss the true one; None: no sets.
        risk: how often an answer may be wrong, where the model may abstain; None: it always answers.
        score: how sets are made, and over which records they keep their promise: see `fedbnn.models.conformal`.
        confidence: with which probability the promise of abstention holds.

    """

    alpha: float | None = None
    risk: float | None = None
    score: Score = "aps"
    within: Within = "client"
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        check_score(self.score, self.within)
        if self.alpha is not None:
            check_alpha(self.alpha)
        check_risk(0.5 if self.risk is None else self.risk, self.confidence)

    @property
    def wanted(self) -> bool:
        return self.alpha is not None or self.risk is not None

    def check_prior(self, prior: object) -> None:
        """Raise a UserError for a label prior that new records would have a part in."""
        if self.wanted and isinstance(prior, str) and prior == "estimate":
            raise UserError(
                "prior 'estimate' depends on the new records, so calibration records say nothing of them: give shares, "
                "own or uniform, or ask for no sets and no abstention"
            )


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Thresholds that were fitted to a client's calibration records; `doubtful` of these equal training records."""

    conformal: Conformal | None = None
    abstention: Abstention | None = None
    doubtful: int = 0

    @classmethod
    def fit(cls, wish: Wish, prediction: Prediction, labels: Tensor, doubtful: int = 0) -> "Calibrated":
        """From what the model says of the calibration records, and their labels."""
        probs, y = prediction.probs.double().numpy(), labels.numpy()
        conformal = None if wish.alpha is None else Conformal.fit(probs, y, wish.alpha, wish.score, wish.within)
        if wish.risk is None:
            return cls(conformal, doubtful=doubtful)
        rule = choose(probs.max(1, initial=0), probs.argmax(1) == y, wish.risk, wish.confidence)
        return cls(conformal, rule, doubtful)

    def sets(self, prediction: Prediction) -> Bools | None:
        """Which classes are in the set of each new record; None where no sets were asked for."""
        return None if self.conformal is None else self.conformal.sets(prediction.probs.double().numpy())

    def abstains(self, prediction: Prediction) -> Bools | None:
        """For which new records no class should be named; None where that was not asked for."""
        if self.abstention is None:
            return None
        silent: Bools = prediction.probs.double().numpy().max(1) <= self.abstention.threshold
        return silent

    def in_words(self, class_names: tuple[str, ...]) -> list[str]:
        """What is promised, and on what it rests."""
        return [
            *([] if self.conformal is None else [_sets_in_words(self.conformal, class_names)]),
            *([] if self.abstention is None else [_abstention_in_words(self.abstention)]),
            *(
                [f"{self.doubtful} of them equal training records: nothing is promised if they are the same"]
                * (self.doubtful > 0)
            ),
        ]

    def to_dict(self, class_names: tuple[str, ...]) -> dict[str, Any]:
        told: dict[str, Any] = {"in_words": self.in_words(class_names)}
        if (sets := self.conformal) is not None:
            limits = [float(one) if math.isfinite(one) else None for one in sets.thresholds]
            told["sets"] = {
                "alpha": sets.alpha,
                "score": sets.score,
                "within": sets.within,
                "records": dict(zip(class_names, sets.counts.tolist(), strict=True)),
                "thresholds": dict(zip(class_names, limits, strict=True)),
                "likely_coverage": sets.likely_coverage(),
            }
        if (rule := self.abstention) is not None:
            told["abstention"] = {
                "risk": rule.risk,
                "confidence": rule.confidence,
                "threshold": rule.threshold if math.isfinite(rule.threshold) else None,
                "records": rule.records,
                "answered": rule.answered,
                "wrong": rule.wrong,
                "bound": rule.bound,
            }
        return told


def _sets_in_words(sets: Conformal, class_names: tuple[str, ...]) -> str:
    share = f"{1 - sets.alpha:.4g}"
    whose = "new records" if sets.within == "client" else "new records of each class"
    words = f"Sets hold the true class of at least {share} of {whose} like the {sets.records} for calibration"
    if bool(sets.without_promise.all()):
        return f"{words}; these are too few to leave any class out"
    if bool(sets.without_promise.any()):
        always = [name for name, one in zip(class_names, sets.without_promise, strict=True) if one]
        return f"{words}; in every set, for want of records: {listing(always)}"
    likely = sets.likely_coverage()
    return words if likely is None else f"{words}; with these very ones, between {likely[0]:.3f} and {likely[1]:.3f}"


def _abstention_in_words(rule: Abstention) -> str:
    wished = f"at most {rule.risk:.4g} of all answers are wrong (confidence {rule.confidence:.4g})"
    if rule.answered == 0:
        return (
            f"No answer is given: {rule.records} records for calibration, with their errors, do not show that {wished}"
        )
    above = "Every record is" if rule.threshold < 0 else f"Records with a probability above {rule.threshold:.4g} are"
    return f"{above} answered: {wished}; {rule.wrong} of {rule.answered} answered ones for calibration were"


def seen_before(origin: str, clients: Iterable[Client], records: Records) -> int:
    """How many records to calibrate with, as models see them, equal one that some client trains on.

    In a table of few values that may be chance. Where all of them do, they were hardly kept from training: a UserError.
    """
    asked = _hashes(records)
    trained = {one for client in clients for one in _hashes(client.train)}
    shared = sum(one in trained for one in asked)
    if asked and shared == len(asked):
        raise UserError(
            f"{origin}: all of its {shared} record(s) are among those that were trained on; give records that no "
            "training saw"
        )
    return shared


def _hashes(records: Records) -> list[bytes]:
    """Of each record's values and label, or number."""
    rows = zip(records.x.cpu().contiguous().numpy(), records.y.tolist(), strict=True)
    return [hashlib.sha256(x.tobytes() + f"|{label:.9g}".encode()).digest() for x, label in rows]
