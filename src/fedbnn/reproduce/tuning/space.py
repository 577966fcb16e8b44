"""Candidates drawn from a space: the same space and the same scores give the same candidates."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from fedbnn.base.errors import UserError
from fedbnn.reproduce.plan import Part

SHIPPED = Path(__file__).parent / "spaces.toml"
AT_RANDOM = 4  # so many are drawn at random, the others from where it went well


class Knob(Part):
    """One setting: a range, evenly or in its logarithm, or choices."""

    low: int | float = 0.0
    high: int | float = 0.0
    log: bool = False
    over: str = ""  # what is drawn is divided by this setting, which stands before it
    choices: Sequence[Any] = ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.choices) == (self.low < self.high) or (self.log and self.low <= 0):
            raise ValueError("give choices, or low and a greater high (with log both above 0)")
        return self

    def draw(self, trial: Any, name: str, before: Mapping[str, Any]) -> Any:
        """A value, rounded to two digits so that what is written down is exactly what was tried."""
        if self.choices:
            return self.choices[trial.suggest_categorical(name, range(len(self.choices)))]
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        value = _rounded(trial.suggest_float(name, self.low, self.high, log=self.log))
        return _rounded(value / before[self.over]) if self.over else value


@cache
def shipped(method: str) -> dict[str, Knob]:
    """The space that comes with fedbnn; empty where there is none."""
    found = tomllib.loads(SHIPPED.read_text(encoding="utf-8")).get(method, {})
    return {name: Knob(**knob) for name, knob in found.items()}


class Sampler:
    """Draws candidates, and is told how each of them did: the lower the better."""

    def __init__(self, space: Mapping[str, Knob]) -> None:
        try:
            import optuna  # noqa: PLC0415
        except ImportError:
            raise UserError("to draw candidates, `fedbnn tune` needs pip install 'fedbnn[tune]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = space
        # A tree-structured Parzen estimator (Bergstra et al. 2011): its seed and what it is told decide.
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=AT_RANDOM))
        self.failed = optuna.trial.TrialState.FAIL

    def ask(self) -> dict[str, Any]:
        """The next candidate."""
        self.trial = self.study.ask()
        chosen: dict[str, Any] = {}
        for name, knob in self.space.items():
            chosen[name] = knob.draw(self.trial, name, chosen)
        return chosen

    def tell(self, cost: float) -> None:
        """How the candidate did that was asked for last; what is not finite counts as failed."""
        good = math.isfinite(cost)
        self.study.tell(self.trial, cost if good else None, None if good else self.failed)


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
