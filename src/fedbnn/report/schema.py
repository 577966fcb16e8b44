"""What the report reads: the parts of result.json and comparison.json it relies on, checked on the way in."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedbnn.federation.evaluation import ALL_SCORES
from fedbnn.federation.metrics import Confusion, RankedCounts, ReliabilityBins, UncertaintyHistogram
from fedbnn.federation.metrics.regression import PitCounts
from fedbnn.report.privacy import Guarantee
from fedbnn.report.variants import Variant


def _none_is_nan(value: Any) -> Any:
    return math.nan if value is None else value


Number = Annotated[float, BeforeValidator(_none_is_nan)]
Bins = Annotated[ReliabilityBins, BeforeValidator(ReliabilityBins.from_dict)]
Ranked = Annotated[RankedCounts, BeforeValidator(RankedCounts.from_dict)]
Matrix = Annotated[Confusion, BeforeValidator(Confusion.from_list)]
Pit = Annotated[PitCounts, BeforeValidator(PitCounts.from_dict)]


def _histogram(values: Any) -> UncertaintyHistogram:
    """As it is in result.json; one from before pairs were counted has no AUROC."""
    if isinstance(values, Mapping) and isinstance(values.get("wrong"), list):
        none = [0] * len(values["wrong"])
        values = {"pairs": none, "won": none, **values}
    return UncertaintyHistogram.from_dict(values)


Histogram = Annotated[UncertaintyHistogram, BeforeValidator(_histogram)]


class _Columns(BaseModel):
    """Lists of one length, side by side."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        lengths = {name: len(values) for name, values in self}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"lists differ in length: {lengths}")
        return self


class ClientFacts(_Columns):
    """One entry a client in every list; bytes are those of one round. An unscored client has no scores."""

    name: list[str]
    model: list[str]
    weights: list[int]
    records: list[int]
    bytes_up: list[Number]
    bytes_down: list[Number]
    seconds: list[Number]

    @property
    def unscored(self) -> list[int]:
        """Clients without records of their own to be scored on."""
        scores = [getattr(self, name) for name in ALL_SCORES if name in type(self).model_fields]
        return [at for at in range(len(self.name)) if all(math.isnan(of[at]) for of in scores)]


class PerClient(ClientFacts):
    """The same in classification."""

    classes: list[list[int]]
    own_class_accuracy: list[Number]
    all_class_accuracy: list[Number]
    nll: list[Number]
    brier: list[Number]
    ece: list[Number]
    mce: list[Number]


class PerClientRegression(ClientFacts):
    """The same in regression."""

    rmse: list[Number]
    mae: list[Number]
    nll: list[Number]
    crps: list[Number]
    coverage_90: list[Number]
    width_90: list[Number]


class Rounds(_Columns):
    """One entry an evaluated round; round 0 is the warm-up before the first exchange."""

    round: list[int]
    seconds: list[Number]


class Curve(Rounds):
    """Scores of these in classification."""

    own_class_accuracy: list[Number]
    all_class_accuracy: list[Number]
    nll: list[Number]
    ece: list[Number]
    mce: list[Number]


class RegressionCurve(Rounds):
    """Scores of these in regression."""

    rmse: list[Number]
    mae: list[Number]
    nll: list[Number]
    crps: list[Number]
    coverage_90: list[Number]
    width_90: list[Number]


class Uncertainty(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    total: Histogram
    epistemic: Histogram


class AnyScores(BaseModel):
    """What is scored in classification and in regression."""

    nll: Number
    ood_auroc_epistemic: Number = math.nan
    ood_auroc_total: Number = math.nan


class Scores(AnyScores):
    """How good one model is: means over clients, calibration errors of all their predictions pooled."""

    own_class_accuracy: Number
    all_class_accuracy: Number
    brier: Number
    ece: Number
    mce: Number
    all_class_nll: Number
    attack_success: Number = math.nan


class RegressionScores(AnyScores):
    """How good one model of a real number is: means over clients."""

    rmse: Number
    mae: Number
    crps: Number
    coverage_90: Number
    width_90: Number


class AnyResult(AnyScores):
    """result.json: what a finished run found. The scores at its top are those of the variant `scored`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    SCORES: ClassVar[type[AnyScores]]
    regression: ClassVar[bool]

    fedbnn_version: str
    method: str
    seed: int
    rounds: int
    clients: int
    set_aside: list[str] = []  # clients that were not asked to the end, as their replies were refused
    dropped: int = Field(default=0, ge=0)  # replies that did not come in time, or were refused
    attackers: list[str] = []  # clients that lied, as the configuration asked: none of them is scored
    dataset: str
    alignment_points: int
    split: str
    scored: Variant = "personal"
    variants: Mapping[Variant, AnyScores] = Field(default_factory=dict)
    epsilon_spent: float | None = Field(default=None, ge=0)
    epsilon_joined: float | None = Field(default=None, ge=0)
    delta: float | None = Field(default=None, ge=0, lt=1)
    privacy_unit: Literal["record", "client"] | None = None
    mechanism: str | None = None
    bytes_up_per_client_round: Number
    bytes_down_per_client_round: Number
    seconds: Number
    per_client: ClientFacts
    curve: Rounds

    @model_validator(mode="after")
    def _headline_is_a_variant(self) -> Self:
        """Fills in the one variant of a result that names none, and puts the headline first."""
        own = self.SCORES(**{name: getattr(self, name) for name in self.SCORES.model_fields})
        if "variants" in self.model_fields_set:
            if "scored" not in self.model_fields_set:
                raise ValueError("variants without 'scored'")
            if self.scored not in self.variants:
                raise ValueError(f"scored is {self.scored!r}, but variants has {list(self.variants)}")
            for name, value in self.variants[self.scored]:
                if not _same(value, getattr(own, name)):
                    raise ValueError(f"{name} is {getattr(own, name)}, but variants.{self.scored}.{name} is {value}")
        self.variants = {self.scored: own} | {name: of for name, of in self.variants.items() if name != self.scored}
        return self

    @model_validator(mode="after")
    def _guarantee_is_whole(self) -> Self:
        if self.epsilon_spent is not None:
            for name in ("delta", "privacy_unit", "mechanism"):
                if getattr(self, name) is None:
                    raise ValueError(f"epsilon_spent without {name!r}")
        return self

    @property
    def guarantee(self) -> Guarantee | None:
        if self.epsilon_spent is None or self.delta is None or self.privacy_unit is None or self.mechanism is None:
            return None
        return Guarantee(self.epsilon_spent, self.delta, self.privacy_unit, self.mechanism, self.epsilon_joined)


class Result(Scores, AnyResult):
    """In classification."""

    SCORES = Scores
    regression = False

    class_names: list[str]
    variants: dict[Variant, Scores] = Field(default_factory=dict)
    per_client: PerClient
    curve: Curve
    reliability: Bins
    uncertainty: Uncertainty
    ranked: Ranked | None = None  # None: from before it was counted
    confusion: Matrix | None = None  # likewise, or of too many classes

    @model_validator(mode="after")
    def _matrix_is_of_the_classes(self) -> Self:
        if self.confusion is not None and len(self.confusion.counts) != len(self.class_names):
            raise ValueError(f"confusion has {len(self.confusion.counts)} classes, class_names {len(self.class_names)}")
        return self

    @property
    def everyone_holds_all(self) -> bool:
        """Whether there is no class that some client never saw."""
        return all(len(classes) == len(self.class_names) for classes in self.per_client.classes)


class Target(BaseModel):
    """The public scale of a target."""

    mean: float
    sd: float = Field(gt=0)


class RegressionResult(RegressionScores, AnyResult):
    """In regression."""

    SCORES = RegressionScores
    regression = True

    task: Literal["regression"]
    target: Target
    variants: dict[Variant, RegressionScores] = Field(default_factory=dict)
    per_client: PerClientRegression
    curve: RegressionCurve
    pit: Pit


def _same(one: float, other: float) -> bool:
    """The same number but for the order in which a sum was taken; no number is the same as no number."""
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


class Entry(BaseModel):
    """One run of a comparison: the method's label, the seed, and the run's folder below the comparison's."""

    method: str
    seed: int
    folder: str


class Comparison(BaseModel):
    """comparison.json: which runs belong together."""

    runs: list[Entry] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_run_once(self) -> Self:
        seen = set()
        for run in self.runs:
            if (run.method, run.seed) in seen:
                raise ValueError(f"{run.method!r} with seed {run.seed} is listed twice")
            seen.add((run.method, run.seed))
        return self
