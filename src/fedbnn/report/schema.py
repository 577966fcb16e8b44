"""What the report reads: the parts of result.json and comparison.json it relies on, checked on the way in."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedbnn.metrics import ReliabilityBins, UncertaintyHistogram


def _none_is_nan(value: Any) -> Any:
    return math.nan if value is None else value


def _bins(value: Any) -> ReliabilityBins:
    if not isinstance(value, Mapping):
        raise ValueError("must be an object")
    return ReliabilityBins.from_dict(value)


def _histogram(value: Any) -> UncertaintyHistogram:
    if not isinstance(value, Mapping):
        raise ValueError("must be an object")
    return UncertaintyHistogram.from_dict(value)


Number = Annotated[float, BeforeValidator(_none_is_nan)]
Bins = Annotated[ReliabilityBins, BeforeValidator(_bins)]
Histogram = Annotated[UncertaintyHistogram, BeforeValidator(_histogram)]


class _Columns(BaseModel):
    """Lists of one length, side by side."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        lengths = {name: len(values) for name, values in self}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"lists differ in length: {lengths}")
        return self


class PerClient(_Columns):
    """One entry a client in every list; bytes are those of one round."""

    name: list[str]
    model: list[str]
    weights: list[int]
    records: list[int]
    classes: list[list[int]]
    own_class_accuracy: list[Number]
    all_class_accuracy: list[Number]
    nll: list[Number]
    brier: list[Number]
    ece: list[Number]
    mce: list[Number]
    bytes_up: list[Number]
    bytes_down: list[Number]
    seconds: list[Number]


class Curve(_Columns):
    """One entry an evaluated round; round 0 is the warm-up before the first exchange."""

    round: list[int]
    own_class_accuracy: list[Number]
    all_class_accuracy: list[Number]
    nll: list[Number]
    ece: list[Number]
    mce: list[Number]
    seconds: list[Number]


class Uncertainty(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    total: Histogram
    epistemic: Histogram


class Result(BaseModel):
    """result.json: what a finished run found."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    fedbnn_version: str
    method: str
    seed: int
    rounds: int
    clients: int
    dataset: str
    class_names: list[str]
    alignment_points: int
    split: str
    own_class_accuracy: Number
    all_class_accuracy: Number
    nll: Number
    brier: Number
    ece: Number
    mce: Number
    all_class_nll: Number
    bytes_up_per_client_round: Number
    bytes_down_per_client_round: Number
    seconds: Number
    per_client: PerClient
    curve: Curve
    reliability: Bins
    uncertainty: Uncertainty


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
