"""Run folders of every state, made by real runs that take a second."""

from pathlib import Path
from typing import Any

import fedbnn
from fedbnn.federation.loop import Round
from fedbnn.runs.config import Config, load_config

TINY = (
    "method=local",
    "partition.clients=2",
    "training.warmup_epochs=1",
    "training.local_epochs=1",
    "engine.debug=true",
    'models=[{name="mlp"}]',
)


def tiny(*more: str) -> Config:
    return load_config(None, [*TINY, *more])


class Stops(fedbnn.Observer):
    """Raises an error after a round, as a user's Ctrl-C or a failure does."""

    def __init__(self, last: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.last, self.error = last, error

    def round_done(self, record: Round) -> None:
        if record.number == self.last:
            raise self.error("told to")


def stopped(config: Config, out: Path, last: int, error: type[BaseException] = KeyboardInterrupt) -> Path:
    """A run that ended after this round."""
    try:
        fedbnn.run(config, out, observer=Stops(last, error))
    except error:
        return out
    raise AssertionError("it went on to its end")


def timeless(value: Any) -> Any:
    """The same without anything that tells how long something took."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in ("seconds", "elapsed")}
    return [timeless(item) for item in value] if isinstance(value, list) else value
