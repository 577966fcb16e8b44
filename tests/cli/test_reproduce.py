import json

import pytest

from fedbnn.cli.app import main
from tests.reproduce.conftest import write_plan


@pytest.fixture
def call(capsys, tmp_path):
    """`fedbnn reproduce` on the tiny plan: exit code, standard output, standard error."""
    folder = write_plan(tmp_path / "tiny")
    places = ["--out", tmp_path / "out", "--runs", tmp_path / "runs"]

    def call(*arguments, scale=folder):
        with pytest.raises(SystemExit) as stopped:
            main([str(one) for one in ("reproduce", *arguments, "--scale", scale, *places)])
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


def test_from_the_command_to_the_page(call, tmp_path):
    code, out, err = call("cost", "--seeds", "0")
    assert code == 0, err
    assert str(tmp_path / "out" / "tiny" / "index.html") in out.replace("\n", "")
    assert "cell 1 of 2: fedavg on digits small, seed 0" in err
    assert "fedbnn on digits small, seed 0: own " in err
    assert sorted(path.name for path in (tmp_path / "out" / "tiny").iterdir()) == [
        "README.md",
        "cost.json",
        "cost.md",
        "index.html",
    ]
    assert len(list((tmp_path / "runs" / "tiny").glob("*/result.json"))) == 2

    code, out, err = call("table1", "--finished")
    assert code == 0, err
    study = json.loads((tmp_path / "out" / "tiny" / "table1.json").read_text())
    assert sum(len(entry["runs"]) for entry in study["entries"]) == 2
    page = (tmp_path / "out" / "tiny" / "index.html").read_text()
    assert '<section id="table1">' in page
    assert '<section id="cost">' in page

    code, out, err = call("table1", "--list", "--sizes", "small")
    assert code == 0, err
    assert out.count("done") == 2
    assert out.count("to run") == 5  # four cells, and the sum below
    assert len(out.splitlines()) == 8, "a heading, a line for each cell, and the sum"
    code, out, err = call("table1", "--list", "--missing", "--sizes", "small")
    assert code == 0, err
    assert "4 cells, 4 to run" in out, "what the results have is not listed"

    code, out, err = call("cost", "--seeds", "0")
    assert code == 0, err
    assert "2 of 2 cells are finished already" in err
    assert "cell 1" not in err


def test_without_a_study_there_is_help_and_a_list(call, tmp_path):
    code, out, _ = call()
    assert code == 0
    assert "--methods" in out
    for name in ("table1", "figure2a", "calibration", "cost"):
        assert name in out
    assert not (tmp_path / "out").exists()


def test_changes_are_part_of_the_result(call, tmp_path):
    code, _, err = call("cost", "--methods", "fedavg", "--seeds", "0", "--set", "rounds=2")
    assert code == 0, err
    study = json.loads((tmp_path / "out" / "tiny" / "cost.json").read_text())
    assert study["changed"] == ["rounds=2"]
    [run] = [run for entry in study["entries"] for run in entry["runs"]]
    assert run["rounds"] == 2
    assert "Changed on the command line: rounds=2." in (tmp_path / "out" / "tiny" / "cost.md").read_text()


def test_a_failed_cell_gives_exit_code_1(call, tmp_path):
    code, _, _ = call("cost", "--methods", "fedavg", "--seeds", "0")
    assert code == 0
    [folder] = (tmp_path / "runs" / "tiny").iterdir()
    for path in folder.iterdir():
        if path.is_file() and path.name != "report.html":
            path.unlink()
    code, _, err = call("cost", "--seeds", "0")
    assert code == 1
    assert "failed: fedavg on digits small, seed 0" in err
    assert "1 of 2 cells failed" in err
    assert "fedbnn on digits small, seed 0: own " in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tabel1"], ["study 'tabel1'", "did you mean 'table1'", "figure2a", "all"]),
        (["table1", "--methods", "fedbn"], ["--methods 'fedbn'", "did you mean 'fedbnn'"]),
        (["table1", "--seeds", "x"], ["--seeds", "'x'"]),
        (["table1", "--set", "rounds=0"], ["rounds = 0", "greater than or equal to 1"]),
    ],
)
def test_a_mistake_is_one_line_before_any_work(call, tmp_path, arguments, words):
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in words)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("fedbnn.runs.experiment.load_dataset", lambda *_: pytest.fail("work has begun"))


@pytest.mark.usefixtures("no_gpu")
def test_the_paper_s_scale_without_a_gpu_is_listed_and_shown_but_not_run(call, tmp_path):
    code, out, err = call("table1", "--list", "--seeds", "0", scale="paper")
    assert code == 0, err
    assert "fedbnn on cifar10 small, seed 0" in out.replace("\n", " ")
    code, _, err = call("table1", "--finished", scale="paper")
    assert code == 0, err
    page = (tmp_path / "out" / "paper" / "table1.md").read_text()
    assert "0 of " in page
    code, out, err = call("all", scale="paper")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "engine.device = 'cuda': PyTorch sees no CUDA device here" in err
    assert "nothing was run" in err
    assert "--set engine.device=cpu" in err
    assert not (tmp_path / "runs").exists()


def test_cells_that_are_finished_need_no_device(call, monkeypatch):
    assert call("cost", "--methods", "fedavg", "--seeds", "0")[0] == 0
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    missing = ["--set", "engine.device=cuda"]
    code, _, err = call("cost", "--methods", "fedavg", "--seeds", "0", *missing)
    assert code == 0, err
    assert "1 of 1 cells are finished already" in err
    code, _, err = call("cost", "--seeds", "0", *missing)
    assert code == 2
    assert "fedbnn on digits small, seed 0: engine.device = 'cuda'" in err


def test_an_unknown_scale_is_one_line(call):
    code, _, err = call("table1", scale="papr")
    assert code == 2
    assert "did you mean 'paper'" in err
