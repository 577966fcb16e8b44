"""`fedbnn runs`: lists, compares and prunes; nothing is deleted unless --yes says so."""

import json
from pathlib import Path

import pytest

import fedbnn
from tests.runs.run_sample import stopped, tiny


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    fedbnn.run(tiny("rounds=1"), "runs/done")
    stopped(tiny("rounds=4", "seed=7"), Path("runs/left"), 1)
    return tmp_path / "runs"


def test_list(call, runs: Path) -> None:
    for arguments in (["runs"], ["runs", "list"], ["runs", "list", runs]):
        code, out, _ = call(*arguments)
        assert code == 0
        done, left = out.splitlines()[1:3]
        assert done.split()[:6] == ["done", "finished", "local", "digits", "0", "1/1"]
        assert left.split()[:6] == ["left", "unfinished", "local", "digits", "7", "1/4"]
        assert "2 runs below" in out
    code, out, _ = call("runs", "list", runs / "done")
    assert code == 0
    assert "1 run below" in out
    told = json.loads(call("runs", "list", "--json")[1])
    assert [one["round_number"] for one in told] == [1, 1]
    result = json.loads((runs / "done" / "result.json").read_text())
    assert told[0]["own_class_accuracy"] == result["own_class_accuracy"]


def test_compare(call, runs: Path) -> None:
    code, out, _ = call("runs", "compare", runs / "done", runs / "left")
    assert code == 0
    assert "seed" in out
    told = json.loads(call("runs", "compare", runs / "done", runs / "left", "--json")[1])
    assert told["settings"] == {"seed": [0, 7], "rounds": [1, 4]}
    code, _, errors = call("runs", "compare", runs / "done", runs)
    assert code == 2
    assert "is no run folder" in errors


def test_prune_is_a_trial_unless_told_otherwise(call, runs: Path) -> None:
    (runs / "left" / "ledgers" / "x").mkdir(parents=True)
    code, out, errors = call("runs", "prune", "--older-than", "0h")
    assert code == 0
    assert "would be deleted" in out
    assert "1 run," in out
    assert "left stays: it has ledgers, on which privacy budgets hang" in errors
    assert (runs / "done" / "result.json").exists()
    told = json.loads(call("runs", "prune", "--older-than", "0h", "--yes", "--json")[1])
    assert [(Path(one["folder"]).name, one["deleted"]) for one in told] == [("done", True), ("left", False)]
    assert [path.name for path in runs.iterdir()] == ["left"]


def test_mistakes(call, runs: Path) -> None:
    for arguments, words in {
        ("prune",): "--older-than is missing",
        ("prune", "--older-than", "soon"): "--older-than soon: write hours, days or weeks",
        ("list", "nowhere"): "no folder nowhere",
    }.items():
        code, _, errors = call("runs", *arguments)
        assert code == 2
        assert words in errors
