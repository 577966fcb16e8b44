"""Ctrl-C on a real process with real workers, then --resume: as if it had never been stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedbnn.cli.app import main

ROUNDS = 8
SMALL = [
    f"rounds={ROUNDS}",
    "partition.clients=3",
    "data.alignment=20",
    "training.warmup_epochs=2",
    "training.local_epochs=1",
    "methods.fedbnn.prior_steps=20",
    "engine.workers=2",
]


def arguments(out: Path) -> list[str]:
    return ["run", "--out", str(out), *(part for change in SMALL for part in ("--set", change))]


def timeless(value: Any) -> Any:
    """The same without anything that tells how long something took."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in ("seconds", "elapsed")}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def test_ctrl_c_stops_cleanly_and_resume_goes_on_with_the_same_bits(tmp_path: Path, capsys: Any) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbnn", *arguments(stopped)],
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

    # That a process of its own goes on is nothing new: these two need no interpreter, and no torch, of their own.
    with pytest.raises(SystemExit) as ended:
        main([*arguments(stopped), "--set", "engine.workers=1", "--resume"])
    assert not ended.value.code
    assert "going on after round" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*arguments(straight), "--set", "engine.debug=true"])
    assert not ended.value.code
    results = [timeless(json.loads((folder / "result.json").read_text())) for folder in (stopped, straight)]
    assert results[0] == results[1]
    lines = [
        [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (stopped, straight)
    ]
    assert lines[0] == lines[1]
    last = f"checkpoint/round-{ROUNDS:05d}"
    files = sorted(file.name for file in (straight / last).glob("*.safetensors"))
    assert len(files) == 4  # three clients and the server
    for name in files:
        assert (straight / last / name).read_bytes() == (stopped / last / name).read_bytes(), name


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    return [int(line) for line in found.stdout.split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
