"""An MLflow store, read back by MLflow, holds a run's settings and scores; the run is one there too after a stop."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import fedbnn
from fedbnn.federation.evaluation import SCORES
from tests.runs.run_sample import stopped, tiny

pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # What MLflow and SQLAlchemy warn of while they are used is not ours.
    warnings.simplefilter("ignore", DeprecationWarning)


def client(store: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{store}")


def test_it_holds_settings_and_scores_also_after_a_stop(tmp_path: Path) -> None:
    store, config = tmp_path / "logs" / "mlflow.db", tiny("rounds=2", "seed=5")
    stopped(config, tmp_path / "run", 0)  # not logged: what it scored is told when it goes on
    result = fedbnn.run(config, tmp_path / "run", resume=True, observer=fedbnn.MLflow(store))
    found = client(store)
    experiment = found.get_experiment_by_name("fedbnn")
    [run] = found.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("local-seed5", "FINISHED")
    assert run.data.params["seed"] == "5"
    assert run.data.params["data.source"] == "digits"
    for name in SCORES:
        history = sorted((one.step, one.value) for one in found.get_metric_history(run.info.run_id, f"scores/{name}"))
        assert history == list(enumerate(result["curve"][name]))

    # Logged from the start and stopped: the same entry goes on.
    config = tiny("rounds=2", "seed=6")
    logger = fedbnn.MLflow(store)
    with pytest.raises(KeyboardInterrupt):
        fedbnn.run(config, tmp_path / "other", observer=[logger, Stop()])
    fedbnn.run(config, tmp_path / "other", resume=True, observer=fedbnn.MLflow(store))
    runs = [one for one in found.search_runs([experiment.experiment_id]) if one.data.params["seed"] == "6"]
    assert [one.info.status for one in runs] == ["FINISHED"]
    history = found.get_metric_history(runs[0].info.run_id, "scores/nll")
    assert sorted(one.step for one in history) == [0, 1, 2]


class Stop(fedbnn.Observer):
    def round_done(self, record: object) -> None:
        raise KeyboardInterrupt


def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    with pytest.raises(fedbnn.UserError, match="MLflow cannot write to nonsense://here"):
        fedbnn.run(tiny("rounds=1"), tmp_path / "run", observer=fedbnn.MLflow())
