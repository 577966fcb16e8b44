"""Searches and studies on data whose targets are real numbers: the task's own scores, and no others."""

import json
from pathlib import Path

import pytest

from fedbnn.base.errors import UserError
from fedbnn.reproduce import driver
from fedbnn.reproduce.plan import load
from fedbnn.reproduce.tuning.search import load_search
from fedbnn.reproduce.tuning.trials import Trials
from fedbnn.reproduce.tuning.write import write_trials

DIABETES = """
rounds = 1
models = [{ name = "mlp", options = { hidden = [8] } }]
data = { source = "diabetes", task = "regression", alignment = 20, validation = 40 }
partition = { kind = "iid", clients = 2 }
training = { warmup_epochs = 1, local_epochs = 1 }
engine = { debug = true }
"""

PLAN = """
title = "Numbers"
seeds = [0]

[rows.local]
title = "Local"
method = "local"

[studies.scores]
kind = "table"
title = "Scores"
rows = ["local"]
columns = [{ data = "diabetes" }]
scores = ["crps", "coverage_90"]
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "diabetes.toml").write_text(DIABETES)
    return tmp_path


def test_a_search_judges_by_scores_of_regression(mine: Path) -> None:
    tuning = load_search(mine / "diabetes.toml", ["local"], trials=2, aim=["crps"])
    trials = Trials(tuning, mine / "out")
    assert [*trials.run(driver.Watcher())] == ["", ""]
    for trial in trials.done["local"]:
        assert list(trial.cost) == [min(of["crps"] for of in trial.variants.values())], "the lower the better"
        assert "own_class_accuracy" not in trial.variants["personal"]
    write_trials(trials)
    assert "| CRPS | RMSE | NLL | coverage, % | width |" in (mine / "out" / "trials.md").read_text()
    with pytest.raises(UserError, match=r"aim = 'ece': unknown.* \(there are rmse, mae, nll, crps, "):
        load_search(mine / "diabetes.toml", ["local"], aim=["ece"])


def test_a_study_shows_scores_of_regression_and_refuses_others_before_it_runs(mine: Path) -> None:
    (mine / "plan.toml").write_text(PLAN)
    work = driver.prepare(load(mine), ["scores"], mine / "runs")
    assert driver.run(work, mine / "out") == []
    [entry] = json.loads((mine / "out" / "scores.json").read_text())["entries"]
    [run] = entry["runs"]
    [model] = run["models"].values()
    assert model["crps"] == pytest.approx(run["variants"]["personal"]["crps"])
    assert "| CRPS | coverage, % |" in (mine / "out" / "scores.md").read_text()
    for wrong in ('"own_class_accuracy"', '"crps", "ece"'):
        (mine / "plan.toml").write_text(PLAN.replace('"crps", "coverage_90"', wrong))
        name = wrong.split('"')[-2]
        with pytest.raises(UserError, match=rf"no '{name}' on diabetes, where data.task = 'regression' \(there are"):
            driver.prepare(load(mine), ["scores"], mine / "runs")
