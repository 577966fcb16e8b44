"""How far a run is, read from its folder while it is written, whoever wrote it."""

import json
import shutil
from pathlib import Path

import pytest

import fedbnn
from fedbnn.base.files import held, locked
from fedbnn.federation.evaluation import SCORES
from fedbnn.runs.standing import as_json, standing, standings
from tests.fuzz.corpus import flips
from tests.runs.run_sample import stopped, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    fedbnn.run(tiny("rounds=2"), folder)
    return folder


def test_a_finished_run_is_told_as_its_result(finished: Path) -> None:
    found, result = standing(finished), json.loads((finished / "result.json").read_text())
    assert (found.state, found.method, found.data, found.seed) == ("finished", "local", "digits", 0)
    assert (found.rounds, found.round_number, found.left) == (2, 2, None)
    assert found.curve == result["curve"]
    assert found.scores == {name: result[name] for name in SCORES}
    assert [one["name"] for one in found.clients] == result["per_client"]["name"]
    assert [one["nll"] for one in found.clients] == result["per_client"]["nll"]
    assert found.seconds == pytest.approx(result["seconds"])


def test_each_state(tmp_path: Path) -> None:
    config = tiny("rounds=3")
    assert standing(tmp_path / "none").state == "waiting"
    left = stopped(config, tmp_path / "left", 1)
    found = standing(left)
    assert (found.state, found.round_number, found.rounds, found.problem) == ("unfinished", 1, 3, "")
    failed = stopped(config, tmp_path / "failed", 0, RuntimeError)
    assert (standing(failed).state, standing(failed).problem) == ("crashed", "RuntimeError: told to")
    with locked(left):
        found = standing(left)
    if held(left / ".lock") is not None:  # where the system tells
        elapsed = [json.loads(line)["elapsed"] for line in (left / "metrics.jsonl").read_text().splitlines()]
        assert found.state == "running"
        assert found.left == pytest.approx(2 * elapsed[-1])  # two more like round 1
    fedbnn.run(config, failed, resume=True)
    assert standing(failed).state == "finished"


def test_a_round_that_is_being_written_is_not_told_yet(finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    (copy / "result.json").unlink()
    text = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").write_text(text[: text.index('{"round": 2') + 30])
    assert standing(copy).round_number == 1


def test_a_comparison_has_its_runs_and_no_folder_beside_it(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished.parent, tmp_path / "all"))
    runs = [{"method": "local", "seed": 0, "folder": "mine"}, {"method": "fedavg", "seed": 0, "folder": "later"}]
    (folder / "comparison.json").write_text(json.dumps({"runs": runs}))
    assert [one.state for one in standings(folder)] == ["finished", "waiting"]
    (folder / "comparison.json").write_text(json.dumps({"runs": [{**runs[0], "folder": "../mine"}]}))
    [found] = standings(folder)
    assert found.state == "unreadable"
    assert "must be a path below" in found.problem


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_whatever_a_file_holds_only_what_can_be_shown_comes_out(finished: Path, name: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoint")))
    good = (copy / name).read_bytes()
    hostile = [b"", b"null", b"[]", b"{}", b'{"round": 1}', b"[" * 3000, b'{"rounds": 1e999}', b"\xff\xfe"]
    for data in [*hostile, *flips(good, 60)]:
        (copy / name).write_bytes(data)
        told = as_json([standing(copy)])
        assert json.loads(told, parse_constant=pytest.fail)[0]["name"] == "copy"


def test_signs_that_a_terminal_would_obey_are_gone(finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "method": "x\x1b[2J"}))
    assert standing(copy).method == "x [2J"


def test_notes_are_kept_in_the_folder(tmp_path: Path) -> None:
    config = tiny("rounds=2")
    left = stopped(config, tmp_path / "left", 1)
    broken = next((left / "checkpoint" / "round-00001").glob("*.safetensors"))
    broken.write_bytes(b"x")
    fedbnn.run(config, left, resume=True)
    [note] = standing(left).notes
    assert note.startswith("checkpoint round-00001 is corrupt")
