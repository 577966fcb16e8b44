"""A run's settings and numbers in an MLflow store: `mlflow ui --backend-store-uri sqlite:///FILE` shows them."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.base.files import make_folder
from fedbnn.federation.evaluation import SOMETIMES, scores_among
from fedbnn.federation.loop import Round
from fedbnn.runs.collection import flattened
from fedbnn.runs.config import Config
from fedbnn.runs.loggers.numbers import numbers_of, prefixed
from fedbnn.runs.observer import Curve, Observer

MOST_AT_ONCE = 100  # settings, by MLflow's rules
LONGEST = 500  # signs of a setting
TAG = "fedbnn.configuration"


class MLflow(Observer):
    """Logs into the SQLite file `store`, or to the store that the variable MLFLOW_TRACKING_URI names.

    A run that goes on is gone on with there too. Needs `fedbnn[mlflow]`; MLflow's own reports to its makers stay off.
    """

    def __init__(self, store: str | Path = "mlflow.db", experiment: str = "fedbnn") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # it would complain where there is no git
        try:
            with _quiet():
                import alembic  # noqa: F401, PLC0415 - an extra that not everybody has
                import sqlalchemy  # noqa: F401, PLC0415
                from mlflow.tracking import MlflowClient  # noqa: PLC0415
        except ImportError as error:
            raise UserError(f"MLflow needs pip install 'fedbnn[mlflow]' ({error})") from None
        self._make, self.experiment = MlflowClient, experiment
        self.store = Path(store)
        self._client: Any = None
        self._run = ""
        self._known = False  # whether earlier rounds are in the store

    @property
    def uri(self) -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.store.resolve()}"

    def _begin(self, title: str, settings: Mapping[str, Any], go_on: bool) -> None:
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        if self.uri.startswith("sqlite:"):
            make_folder(self.store.resolve().parent)
        with _quiet(), _telling(self.uri):
            self._client = self._make(tracking_uri=self.uri)
            found = self._client.get_experiment_by_name(self.experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self.experiment)
            query = f"tags.`{TAG}` = '{digest}' and attributes.status != 'FINISHED'"
            earlier = self._client.search_runs([experiment], query, max_results=1) if go_on else []
            self._known = bool(earlier)
            if earlier:
                self._run = earlier[0].info.run_id
                return
            run = self._client.create_run(experiment, run_name=title, tags={TAG: digest})
            self._run = run.info.run_id
            from mlflow.entities import Param  # noqa: PLC0415

            params = [Param(key, str(value)[:LONGEST]) for key, value in flattened(settings)]
            for at in range(0, len(params), MOST_AT_ONCE):
                self._client.log_batch(self._run, params=params[at : at + MOST_AT_ONCE])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        now = int(1000 * time.time())
        with _quiet(), _telling(self.uri):
            self._client.log_batch(
                self._run, metrics=[Metric(name, value, now, step) for name, value in values.items()]
            )

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        self._begin(f"{config.method_name}-seed{config.seed}", config.to_json(), round_number >= 0)

    def earlier(self, curve: Curve) -> None:
        if not self._known:
            for at, number in enumerate(curve["round"]):
                self._log(prefixed("scores", {name: curve[name][at] for name in scores_among(curve)}), int(number))

    def round_done(self, record: Round) -> None:
        if not self._run:
            self._begin("federation", {}, go_on=False)
        self._log(numbers_of(record), record.number)

    def run_finished(self, result: dict[str, Any]) -> None:
        self._log(prefixed("scores", {name: result[name] for name in SOMETIMES if name in result}), result["rounds"])
        with _quiet(), _telling(self.uri):
            self._client.set_terminated(self._run)
        self._run = ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what MLflow's parts warn its makers of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextmanager
def _telling(uri: str) -> Iterator[None]:
    """What a store refuses becomes one line."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    try:
        yield
    except MlflowException as error:
        raise UserError(f"MLflow cannot write to {uri}: {error}") from None
