"""Start a run on the engine that its configuration names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.federation.engines import Engine
from fedbnn.runs import experiment
from fedbnn.runs.config import Config
from fedbnn.runs.observer import Observer, Observers


def run(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    observer: Observer | Sequence[Observer] | None = None,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Run one configuration into the folder `out`; its result. The folder also gets a report.

    `observer` is one or several who hear how it goes on. An `engine` that is given is not closed: one pool of workers
    can serve many runs.
    """
    simulated = engine is None and isinstance(config, Config) and config.engine.kind == "flower-sim"
    if simulated and Observers(observer).stops:
        raise UserError("engine.kind = 'flower-sim' holds all its rounds: an observer that stops needs the local one")
    drive = _flower() if simulated else None
    return experiment.run(config, out, resume=resume, observer=observer, engine=engine, drive=drive)


def _flower() -> experiment.Drive:
    """All rounds on Flower's simulation."""
    try:
        from fedbnn.deployment.flower.simulation import simulate  # noqa: PLC0415 - an extra that few have installed
    except ImportError as error:
        raise UserError(f"engine.kind = 'flower-sim' needs pip install 'fedbnn[flower]' ({error})") from None
    return simulate
