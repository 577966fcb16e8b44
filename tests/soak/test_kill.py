"""The bounded part of `kill.py`: a run that is killed at any step of its files goes on to the same bits."""

import json
import subprocess
import sys
from pathlib import Path

from tests.soak.kill import difference

KILLS = 8


def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).with_name("dying_run.py")), str(tmp_path), str(KILLS)]
    found = subprocess.run(program, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["died"]) >= KILLS // 2, found.stdout
    assert difference(tmp_path / "straight", tmp_path / "killed") == ""


def test_a_difference_is_found(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 1.0), ("three", 1.0 + 1e-15)):
        folder = tmp_path / name / "checkpoint" / "round-00003"
        folder.mkdir(parents=True)
        (folder / "server.safetensors").write_bytes(b"same" if name != "two" else b"other")
        (tmp_path / name / "result.json").write_text(json.dumps({"score": value, "seconds": len(name)}))
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps({"round": 3, "elapsed": len(name)}) + "\n")
    assert difference(tmp_path / "one", tmp_path / "one") == ""
    assert difference(tmp_path / "one", tmp_path / "two") == "checkpoint/round-00003/server.safetensors"
    assert difference(tmp_path / "one", tmp_path / "three") == "result.json: score"
