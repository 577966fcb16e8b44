"""From a folder on disk to runs in memory, or one line that says which file is wrong and what to do."""

from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedbnn.base.errors import UserError
from fedbnn.base.files import read_json
from fedbnn.federation.metrics import Confusion, RankedCounts, ReliabilityBins, UncertaintyHistogram
from fedbnn.federation.metrics.regression import PitCounts
from fedbnn.report.privacy import Guarantee, weakest
from fedbnn.report.schema import AnyResult, Comparison, RegressionResult, Result
from fedbnn.report.variants import Variant

UNFINISHED = "the run is not finished; continue it with --resume"
BROKEN = "repeat the run to write it anew"

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Run:
    """A finished run: its configuration as written and its checked result."""

    config: dict[str, Any]
    result: AnyResult


@dataclass(frozen=True)
class Group:
    """The runs of one method, which differ in their seed."""

    method: str
    runs: tuple[Run, ...]

    @property
    def results(self) -> tuple[AnyResult, ...]:
        return tuple(run.result for run in self.runs)

    @property
    def classified(self) -> tuple[Result, ...]:
        """Those of classification: all, or none."""
        return tuple(result for result in self.results if isinstance(result, Result))

    @property
    def pit(self) -> PitCounts:
        """In regression."""
        return reduce(add, (result.pit for result in self.results if isinstance(result, RegressionResult)))

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The models that are scored in all runs, the headline first."""
        first, *others = (run.result.variants for run in self.runs)
        return tuple(variant for variant in first if all(variant in other for other in others))

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds in every run."""
        return weakest([result.guarantee for result in self.results])

    @property
    def reliability(self) -> ReliabilityBins:
        return reduce(add, (result.reliability for result in self.classified))

    @property
    def total_uncertainty(self) -> UncertaintyHistogram:
        return reduce(add, (result.uncertainty.total for result in self.classified))

    @property
    def epistemic_uncertainty(self) -> UncertaintyHistogram:
        return reduce(add, (result.uncertainty.epistemic for result in self.classified))

    @property
    def ranked(self) -> RankedCounts | None:
        """None where a run is from before it was counted."""
        counts = [result.ranked for result in self.classified if result.ranked is not None]
        return reduce(add, counts) if len(counts) == len(self.results) else None

    @property
    def confusion(self) -> Confusion | None:
        """None where a run has none, or where runs have other classes."""
        matrices = [result.confusion for result in self.classified if result.confusion is not None]
        same = len({tuple(result.class_names) for result in self.classified}) == 1
        return reduce(add, matrices) if same and len(matrices) == len(self.results) else None


@dataclass(frozen=True)
class Study:
    """What a page is about: one run, or several to be compared."""

    comparison: bool
    groups: tuple[Group, ...]

    @property
    def regression(self) -> bool:
        return self.groups[0].results[0].regression

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for group in self.groups for run in group.runs)


def load(folder: Path) -> Study:
    """The run or the comparison in `folder`; a comparison where it could be both."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: give the folder of a run or of a comparison")
    if (folder / "comparison.json").exists():
        return _load_comparison(folder)
    if not (folder / "result.json").exists() and not (folder / "config.json").exists():
        raise UserError(f"no result.json or comparison.json in {folder}: give the folder of a run")
    run = _load_run(folder)
    return Study(comparison=False, groups=(Group(run.result.method, (run,)),))


def runs_of(folder: Path) -> list[Path]:
    """The run folders of a comparison, whether or not anything is in them yet."""
    path = folder / "comparison.json"
    return [_inside(folder, entry.folder, path) for entry in _checked(Comparison, path).runs]


def _load_comparison(folder: Path) -> Study:
    path = folder / "comparison.json"
    listing = _checked(Comparison, path)
    runs: dict[str, list[Run]] = {}
    for entry in listing.runs:
        runs.setdefault(entry.method, []).append(_load_run(_inside(folder, entry.folder, path)))
    study = Study(comparison=True, groups=tuple(Group(name, tuple(of)) for name, of in runs.items()))
    if len({run.result.regression for run in study.runs}) > 1:
        raise UserError(f"{path}: some runs are of classification and some of regression; compare those of one task")
    for group in study.groups:
        # Runs of earlier versions score the same models, but for the global one under own shares.
        scored = dict.fromkeys(
            ", ".join(one for one in result.variants if one != "global_own_prior") for result in group.results
        )
        if len(scored) > 1:
            raise UserError(
                f"{path}: the runs of {group.method!r} score different models ({'; '.join(scored)}); "
                "give them different methods"
            )
        try:
            _ = (
                group.pit
                if study.regression
                else (group.reliability, group.total_uncertainty, group.epistemic_uncertainty, group.ranked)
            )
        except ValueError as error:
            raise UserError(
                f"{path}: the runs of {group.method!r} cannot be pooled ({error}); give them different methods"
            ) from None
    return study


def _load_run(folder: Path) -> Run:
    if not folder.is_dir():
        raise UserError(f"no run folder {folder}: repeat the comparison to make it")
    result = folder / "result.json"
    if not result.exists():
        raise UserError(f"no result.json in {folder}: {UNFINISHED}")
    config = folder / "config.json"
    if not config.exists():
        raise UserError(f"no config.json in {folder}: {BROKEN}")
    settings = _json(config)
    if not isinstance(settings, dict):
        raise UserError(f"{config}: must hold a JSON object; {BROKEN}")
    told = _json(result)
    regression = isinstance(told, dict) and told.get("task") == "regression"
    return Run(settings, _validated(RegressionResult if regression else Result, told, result))


def _inside(folder: Path, name: str, listing: Path) -> Path:
    """The run folder `name`, which must lie below `folder` on any system and through any link."""
    foreign = PureWindowsPath(name)
    climbs = ".." in foreign.parts or foreign.drive or foreign.root or not foreign.parts
    path = folder / name
    if climbs or "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{listing}: run folder {name!r} must be a path below {folder}, without '..'")
    return path


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {BROKEN}") from None


def _checked(model: type[Model], path: Path) -> Model:
    return _validated(model, _json(path), path)


def _validated(model: type[Model], told: Any, path: Path) -> Model:
    try:
        return model.model_validate(told)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole file"
        message = " ".join(first["msg"].split())
        raise UserError(f"{path}: {field}: {message}; {BROKEN}") from None
