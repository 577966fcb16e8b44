"""`fedbnn tune` from the command line: a search stopped and continued, its tables, and the configuration it writes."""

import json
import sys
import tomllib

import pytest

from fedbnn.cli.app import main
from fedbnn.reproduce.driver import Runner
from fedbnn.runs.config import load_config
from tests.reproduce.conftest import DIGITS, write_plan

MINE = DIGITS.replace('source = "digits", alignment = 20', 'source = "digits", alignment = 20, validation = 40')


@pytest.fixture
def call(capsys, tmp_path):
    """`fedbnn tune`: exit code, standard output, standard error."""
    (tmp_path / "mine.toml").write_text(MINE)

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(one) for one in ("tune", *arguments, "--out", tmp_path / "out")])
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


def trials(tmp_path, name="mine"):
    return json.loads((tmp_path / "out" / name / "trials.json").read_text())["methods"]


def test_from_a_configuration_to_the_best_settings(call, tmp_path):
    best = tmp_path / "best.toml"
    arguments = (tmp_path / "mine.toml", "--methods", "fedavg,local", "--trials", "3", "--write", best)
    code, out, err = call(*arguments)
    assert code == 0, err
    assert "cell 1 of 6: fedavg on mine (candidate 1), seed 0" in err
    assert "cell 2 of 6: local on mine (candidate 1), seed 0" in err, "methods take turns"
    found = trials(tmp_path)
    assert {row: len(of) for row, of in found.items()} == {"fedavg": 3, "local": 3}
    assert all(of[0]["settings"] == {} for of in found.values()), "the defaults first"
    lines = (tmp_path / "out" / "mine" / "trials.md").read_text().splitlines()
    assert sum(line.startswith("| fedavg |") for line in lines) == 9, "three models of each candidate"
    config, base = load_config(best), load_config(tmp_path / "mine.toml")
    for row, of in found.items():
        chosen = min(of, key=lambda one: one["criterion"]["nll"])
        written = tomllib.loads(best.read_text()).get("methods", {}).get(row, {})
        assert written == chosen["settings"]
        scores = [one["criterion"]["nll"] for one in of]
        assert [min(v["nll"] for v in one["variants"].values()) for one in of] == pytest.approx(scores)
    assert config.evaluation == base.evaluation
    assert (config.data, config.partition, config.rounds) == (base.data, base.partition, base.rounds)
    for path in (tmp_path / "out" / "mine" / "runs").glob("*/config.json"):
        assert json.loads(path.read_text())["evaluation"]["split"] == "validation"

    again = call(*arguments)
    assert again[:2] == (code, out)
    assert "cell 1" not in again[2], "nothing is run again"
    assert trials(tmp_path) == found


def test_a_search_that_was_stopped_goes_on_and_ends_the_same(call, tmp_path, monkeypatch):
    arguments = (tmp_path / "mine.toml", "--methods", "local", "--trials", "7")
    assert call(*arguments)[0] == 0
    whole = trials(tmp_path)
    (tmp_path / "out").rename(tmp_path / "whole")
    honest, ran = Runner.run, []

    def stop(self, cell, waiting):
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(cell.folder)
        return honest(self, cell, waiting)

    monkeypatch.setattr(Runner, "run", stop)
    code, _, err = call(*arguments)
    assert code == 130
    assert "`tune`" in err
    assert trials(tmp_path)["local"] == whole["local"][:3]
    assert "4 candidates are not tried yet." in (tmp_path / "out" / "mine" / "trials.md").read_text()
    monkeypatch.setattr(Runner, "run", lambda *of: ran.append(of[1].folder) or honest(*of))
    assert call(*arguments)[0] == 0
    assert trials(tmp_path) == whole
    assert len(ran) == len(set(ran)) == 7, "each candidate is run once"


def test_a_longer_search_goes_on_with_the_candidates_of_the_shorter(call, tmp_path):
    arguments = (tmp_path / "mine.toml", "--methods", "local", "--trials")
    assert call(*arguments, "6")[0] == 0
    short = trials(tmp_path)["local"]
    code, _, err = call(*arguments, "8")
    assert code == 0, err
    assert trials(tmp_path)["local"][:6] == short
    assert "cell 7 of 8" in err
    assert "cell 6 of 8" not in err


def test_a_search_on_rows_of_a_plan(call, tmp_path):
    folder = write_plan(tmp_path / "tiny")
    (folder / "digits.toml").write_text(MINE)
    search = tmp_path / "rows.toml"
    search.write_text(
        f'''title = "T"
scale = "{folder}"
column = {{ data = "digits", size = "small" }}
seeds = [4, 5]
aim = ["own_class_accuracy", "nll"]
[search.fedavg]
candidates = [{{ learning_rate = 0.5 }}, {{ learning_rate = 0.01, "training.local_epochs" = 2 }}]
[search.fedbnn]
candidates = [{{ kl_weight = 0.5 }}]
'''
    )
    code, _, err = call(search, "--write", tmp_path / "best.toml")
    assert code == 2
    assert "one row of a plan; choose it with --methods" in err
    code, _, err = call(search)
    assert code == 0, err
    assert "different numbers of candidates: fedavg 2, fedbnn 1." in (tmp_path / "out/rows/trials.md").read_text()
    best = tmp_path / "best.toml"
    code, _, err = call(search, "--methods", "fedavg", "--write", best)
    assert code == 0, err
    key = [
        (-one["criterion"]["own_class_accuracy"], one["criterion"]["nll"]) for one in trials(tmp_path, "rows")["fedavg"]
    ]
    config = load_config(best)
    assert config.method == "fedavg"
    assert config.partition.records_per_class == 2, "as the size says"
    assert config.methods.fedavg.learning_rate == (0.5, 0.01)[key.index(min(key))]


def test_a_candidate_that_fails_is_told_of_and_the_others_go_on(call, tmp_path):
    arguments = (tmp_path / "mine.toml", "--methods", "local", "--trials", "2")
    assert call(*arguments)[0] == 0
    spoiled = min((tmp_path / "out" / "mine" / "runs").iterdir())
    for path in spoiled.iterdir():
        if path.is_file():
            path.unlink()
    (spoiled / "stray").write_text("")
    code, _, err = call(*arguments)
    assert code == 1
    assert "1 candidates failed" in err
    assert sorted(len(one["variants"]) for one in trials(tmp_path)["local"]) == [0, 1]
    for folder in (tmp_path / "out" / "mine" / "runs").iterdir():
        (folder / "stray").write_text("")
        (folder / "config.json").unlink(missing_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
    code, _, err = call(*arguments, "--write", tmp_path / "best.toml")
    assert code == 2
    assert "no candidate of 'local' came to an end" in err
    assert not (tmp_path / "best.toml").exists()


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (DIGITS, [], ["data.validation = 0", "never on test records", "set data.validation"]),
        (MINE, ["--set", "evaluation.split=test"], ["evaluation.split = 'test'", "validation records only"]),
        (MINE, ["--methods", "fedavgg"], ["'fedavgg'", "did you mean 'fedavg'"]),
        (MINE, ["--aim", "nlll"], ["aim = 'nlll'", "did you mean 'nll'"]),
        (MINE, ["--seeds", "x"], ["--seeds", "'x'"]),
        (MINE, ["--write", "mine.toml"], ["--write mine.toml", "choose another name"]),
        (MINE, ["--write", "nowhere/x.toml"], ["--write nowhere/x.toml", "no such folder"]),
        (MINE, ["--set", 'models=[{name="mlp"},{name="cnn2"}]', "--methods", "fedavg"], ["averages weights"]),
        ('title = "T"\nseeds = []\nsearch = {local = {}}', [], ["seeds = []", "at least 1"]),
        ('title = "T"\nseeds = [1]\nsearch = {local = {spce = {}}}', [], ["'search.local.spce'", "'space'"]),
        ('title = "T"\nseeds = [1]\nsearch = {loca = {}}', [], ["'loca'", "did you mean 'local'"]),
        (
            'title = "T"\nseeds = [1]\nsearch = {local = {}}\nconfig = "../x"',
            [],
            ["config = '../x'", "beside this one"],
        ),
        ('title = "T"\nseeds = [1]\nsearch = {local = {}}\nconfig = "none"', [], ["no configuration file"]),
        ('title = "T"\nseeds = [1]\nsearch = {local = {}}\nscale = "quick"', [], ["column.data = ''", "digits"]),
        (
            'title = "T"\nseeds = [1]\nsearch = {local = {candidates = [{rate = 1}]}}',
            [],
            ["candidate 1", "row local", "'methods.local.rate'"],
        ),
        (
            'title = "T"\nseeds = [1]\nsearch = {local = {space = {learning_rate = {low = 2, high = 1}}}}',
            [],
            ["search.local.space.learning_rate", "a greater high"],
        ),
        (
            'title = "T"\nseeds = [1]\nsearch = {local = {space = {a = {low = 1, high = 2, over = "b"}}}}',
            [],
            ["space.a.over = 'b'", "no setting before it"],
        ),
    ],
)
def test_a_mistake_is_one_line_before_any_work(call, tmp_path, monkeypatch, text, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(text)
    code, out, err = call("mine.toml", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert all(word in err for word in words), err
    assert not (tmp_path / "out").exists()


def test_without_optuna_spaces_say_what_to_install_and_lists_work(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = call(tmp_path / "mine.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install 'fedbnn[tune]'" in err
    (tmp_path / "list.toml").write_text(
        'title = "T"\nseeds = [0]\nconfig = "mine.toml"\nsearch = {local = {candidates = [{}]}}'
    )
    code, _, err = call(tmp_path / "list.toml")
    assert code == 0, err
