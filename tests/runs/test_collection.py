"""Runs below a folder: found, put side by side, and deleted when nothing hangs on them."""

import json
import os
import shutil
from pathlib import Path

import pytest

import fedbnn
from fedbnn.base.files import held, locked
from fedbnn.runs.collection import compare_runs, find_runs, size_of
from fedbnn.runs.prune import delete, old_runs, parse_age, refusal
from tests.runs.run_sample import stopped, tiny

DAY = 86400.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was stopped, and a comparison of two."""
    folder = tmp_path_factory.mktemp("runs")
    fedbnn.run(tiny("rounds=1"), folder / "done")
    stopped(tiny("rounds=2", "seed=3", "methods.local.learning_rate=0.5"), folder / "deep" / "er" / "left", 0)
    fedbnn.compare(tiny("rounds=1"), ["local"], folder / "both", seeds=[0, 1])
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs", symlinks=True))


def names(found: list[Path], below: Path) -> list[str]:
    return [path.relative_to(below).as_posix() for path in found]


def aged(folder: Path, days: float) -> None:
    for path in folder.rglob("*"):
        before = path.stat().st_mtime - days * DAY
        os.utime(path, (before, before))


def test_runs_are_found_at_any_depth_and_links_are_not_followed(runs: Path) -> None:
    (runs / "loop").symlink_to(runs)
    (runs / "other").symlink_to(runs / "done")
    (runs / "letters").mkdir()
    (runs / "letters" / "config.json").write_text("{}")
    assert names(find_runs(runs), runs) == ["both/local-seed0", "both/local-seed1", "deep/er/left", "done"]
    assert find_runs(runs / "done") == [runs / "done"]
    assert size_of(runs / "done") == sum(one.stat().st_size for one in (runs / "done").rglob("*") if one.is_file())
    with pytest.raises(fedbnn.UserError, match="no folder"):
        find_runs(runs / "none")


def test_runs_side_by_side_show_what_differs(runs: Path) -> None:
    found = compare_runs([runs / "done", runs / "deep" / "er" / "left"])
    assert found.settings == {
        "seed": [0, 3],
        "rounds": [1, 2],
        "methods.local.learning_rate": [found.settings["methods.local.learning_rate"][0], 0.5],
    }
    result = json.loads((runs / "done" / "result.json").read_text())
    assert found.scores["nll"][0] == result["nll"]
    assert [run.state for run in found.runs] == ["finished", "unfinished"]
    assert compare_runs([runs / "both"]).settings == {"seed": [0, 1]}
    for wrong in ([runs / "done"], [runs / "done", runs / "done"], [runs / "done", runs / "deep"]):
        with pytest.raises(fedbnn.UserError, match=r"at least two runs|is no run folder"):
            compare_runs(wrong)


def test_old_runs_go_and_young_ones_stay(runs: Path) -> None:
    aged(runs / "done", 40)
    found = old_runs(runs, 30 * DAY)
    assert [one.folder for one in found] == [runs / "done"]
    assert found[0].seconds == pytest.approx(40 * DAY, abs=3600)
    assert delete(found) == [runs / "done"]
    assert names(find_runs(runs), runs) == ["both/local-seed0", "both/local-seed1", "deep/er/left"]
    assert not list(runs.glob(".*"))
    assert [one.folder.name for one in old_runs(runs, 0, unfinished=True)] == ["left"]


def test_a_comparison_goes_as_a_whole_or_not_at_all(runs: Path) -> None:
    aged(runs / "both" / "local-seed0", 40)
    [one] = old_runs(runs, 30 * DAY)
    assert one.refusal == "it is part of a comparison of which local-seed1 stays"
    assert delete([one]) == []
    aged(runs / "both" / "local-seed1", 40)
    assert len(delete(old_runs(runs, 30 * DAY))) == 2
    assert not (runs / "both").exists()


def test_what_is_not_provably_a_run_stays(runs: Path) -> None:
    run = runs / "done"
    for path, words in {
        "thesis.tex": "thesis.tex in it is not a run's",
        "ledgers/client-0/anything": "it has ledgers, on which privacy budgets hang",
        "checkpoint/ledger.jsonl": "checkpoint/ledger.jsonl in it is a ledger",
        "sites/a/ledgers/ledger.jsonl": "sites/a/ledgers/ledger.jsonl in it is a ledger",
    }.items():
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_text("mine")
        assert refusal(run).startswith(words)
        assert delete(old_runs(run, 0)) == []
        assert (run / path).read_text() == "mine"
        if "/" in path and not path.startswith("checkpoint"):
            shutil.rmtree(run / path.split("/")[0])
        else:
            (run / path).unlink()
    (run / "checkpoint" / "elsewhere").symlink_to(runs)
    assert refusal(run) == "checkpoint/elsewhere in it is a link or no plain file"
    (run / "checkpoint" / "elsewhere").unlink()
    (run / "ledgers").symlink_to(runs / "both")
    assert "ledgers" in refusal(run)
    (run / "ledgers").unlink()
    (run / "ledgers").mkdir()
    assert refusal(run) == ""  # an empty one has nothing that was spent
    config = (run / "config.json").read_text()
    for text in ("{}", "[]", "not JSON"):
        (run / "config.json").write_text(text)
        assert refusal(run) == "its config.json and partition.json are not those of a run"
    (run / "config.json").write_text(config)
    with locked(run):
        if held(run / ".lock") is not None:
            assert old_runs(run, 0)[0].refusal == "a process is working on it"
    (runs / "link").symlink_to(run)
    assert refusal(runs / "link") == "it is no run folder of ours"


def test_a_ledger_that_appears_before_the_deletion_saves_the_run(runs: Path) -> None:
    found = old_runs(runs / "done", 0)
    (runs / "done" / "ledgers" / "a").mkdir(parents=True)
    assert delete(found) == []
    assert (runs / "done" / "result.json").exists()


def test_a_private_run_keeps_its_ledgers(tmp_path: Path) -> None:
    """A real one: what it spent is in its folder."""
    pytest.importorskip("dp_accounting")
    config = fedbnn.load_config(
        None,
        ["rounds=1", "partition.clients=2", "training.warmup_epochs=1", "training.local_epochs=1", "data.alignment=20",
         'models=[{name="mlp"}]', "engine.debug=true", "privacy.mechanism=dp_teacher", "methods.fedbnn.prior_steps=2"],
    )  # fmt: skip
    fedbnn.run(config, tmp_path / "private")
    before = {path: path.read_bytes() for path in (tmp_path / "private").rglob("*") if path.is_file()}
    [one] = old_runs(tmp_path, 0)
    assert one.refusal.startswith("it has ledgers")
    assert delete([one]) == []
    assert {path: path.read_bytes() for path in (tmp_path / "private").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43200), ("30d", 30 * DAY), ("8w", 56 * DAY), ("0d", 0)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-3d", "3 d", "1.5d", "30m", "9999999d", "٣d"])
def test_other_ages_are_one_line(text: str) -> None:
    with pytest.raises(fedbnn.UserError, match=rf"--older-than {text}: write hours, days or weeks"):
        parse_age(text)
