"""Observers that pass a run's numbers on to programs made for looking at them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean
from fedbnn.runs.loggers.mlflow import MLflow
from fedbnn.runs.loggers.tensorboard import TensorBoard
from fedbnn.runs.observer import Observer

__all__ = ["LOGGERS", "MLflow", "TensorBoard", "make_loggers"]

LOGGERS: dict[str, Callable[[Path], Observer]] = {
    "tensorboard": lambda out: TensorBoard(out / "tensorboard"),
    "mlflow": lambda out: MLflow(out.parent / "mlflow.db"),
}
"""What `--log` takes; each is made for the folder that a run or comparison is written to."""


def make_loggers(names: Sequence[str], out: Path) -> list[Observer]:
    """Those of these names; what is not installed is told before any work."""
    for name in names:
        if name not in LOGGERS:
            raise UserError(f"--log {name}{did_you_mean(name, LOGGERS)} (one of: {', '.join(LOGGERS)})")
    return [LOGGERS[name](out) for name in dict.fromkeys(names)]
