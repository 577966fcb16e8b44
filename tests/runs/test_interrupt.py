"""Ctrl-C on a real process with real workers, then --resume: as if it had never been stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SMALL = [
    "rounds=12",
    "partition.clients=3",
    "data.alignment=20",
    "training.warmup_epochs=2",
    "training.local_epochs=1",
    "methods.fedbnn.prior_steps=40",
    "engine.workers=2",
]


def command(out: Path, *more: str) -> list[str]:
    changes = [part for change in SMALL for part in ("--set", change)]
    return [sys.executable, "-m", "fedbnn", "run", "--out", str(out), *changes, *more]


def timeless(value: Any) -> Any:
    """The same without anything that tells how long something took."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in ("seconds", "elapsed")}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def test_ctrl_c_stops_cleanly_and_resume_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    process = subprocess.Popen(
        command(stopped),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background may have been told to ignore it; a terminal's programs have not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    deadline = time.monotonic() + 120
    while not (stopped / "checkpoint" / "round-00001").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint after two minutes"
        time.sleep(0.02)
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume goes on" in errors
    assert "Traceback" not in errors
    assert len(workers) == 2
    assert not any(alive(worker) for worker in workers)
    assert not (stopped / "result.json").exists()

    resumed = subprocess.run(command(stopped, "--resume"), check=False, capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert "going on after round" in resumed.stderr
    whole = subprocess.run(
        command(straight, "--set", "engine.workers=1"), capture_output=True, text=True, timeout=300, check=True
    )
    assert whole.returncode == 0
    results = [timeless(json.loads((folder / "result.json").read_text())) for folder in (stopped, straight)]
    assert results[0] == results[1]
    lines = [
        [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (stopped, straight)
    ]
    assert lines[0] == lines[1]
    for file in sorted((straight / "checkpoint" / "round-00006").glob("*.safetensors")):
        assert file.read_bytes() == (stopped / "checkpoint" / "round-00006" / file.name).read_bytes(), file.name


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    return [int(line) for line in found.stdout.split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
