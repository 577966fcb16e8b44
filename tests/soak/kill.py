"""Kills runs and their workers at random moments, and looks whether the results tell. Part of `make soak`

    python tests/soak/kill.py [--minutes 10] [--seed 0] [--folder FOLDER]

Every trial is the same small federation on handwritten digits, with faults of its own, in two workers:

whole    the run is killed (SIGKILL) with its workers at a random moment and taken up with --resume, again and again
workers  a random worker is killed at two random moments; a third death at one client would end the run, as it should

Afterwards result.json and metrics.jsonl, but for times, and the bytes of the last checkpoint must be those of a run
that nobody disturbed. The first difference ends the script with code 1, and the folder stays to be looked at.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.soak.killing import killing

MOST_KILLS = 8  # of one run, so that it ends at all
EARLY = 0.7  # of the time that a run took once, in which it is killed: another time the machine may be quicker
SMALL = (
    "rounds=6",
    "partition.clients=4",
    "data.alignment=20",
    "training.warmup_epochs=2",
    "training.local_epochs=1",
    "methods.fedbnn.prior_steps=10",
    "engine.workers=2",
    "faults.dropout=0.15",
    "faults.straggler=0.1",
    "faults.crash=0.1",
    "faults.corrupt=0.05",
    "quorum=1",
)


def timeless(value: Any) -> Any:
    """The same without anything that tells how long something took."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in ("seconds", "elapsed")}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def difference(straight: Path, killed: Path) -> str:
    """In what a run folder differs from that of a run that nobody disturbed; empty: in nothing."""
    if not (killed / "result.json").exists():
        return "there is no result.json"
    one, other = (timeless(json.loads((folder / "result.json").read_text())) for folder in (straight, killed))
    if one != other:
        return f"result.json: {', '.join(key for key in one if one[key] != other.get(key)) or 'more keys'}"
    one, other = (
        [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (straight, killed)
    )
    if one != other:
        return "metrics.jsonl"
    last = max(folder.name for folder in (straight / "checkpoint").iterdir())
    files = sorted(file.name for file in (straight / "checkpoint" / last).glob("*.safetensors"))
    for name in files:
        mine, theirs = (folder / "checkpoint" / last / name for folder in (straight, killed))
        if not theirs.exists() or mine.read_bytes() != theirs.read_bytes():
            return f"checkpoint/{last}/{name}"
    return "" if files else "the undisturbed run has no checkpoint"


def started(out: Path, changes: Sequence[str], scratch: Path) -> subprocess.Popen[bytes]:
    """A run, or what is left of it."""
    command = [sys.executable, "-m", "fedbnn", "run", "--out", str(out), "--resume"]
    scratch.mkdir(exist_ok=True)
    log = (scratch / f"{out.name}.log").open("ab")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}  # what the killed leave lies there
    with log:
        return subprocess.Popen(
            [*command, *(part for change in changes for part in ("--set", change))],
            stdout=log,
            stderr=log,
            env=environment,
        )


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process ends by itself within so many seconds; an error if it fails."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    if code != 0:
        raise RuntimeError(f"the run ended with code {code}")
    return True


def whole(out: Path, changes: Sequence[str], scratch: Path, usual: float, chance: random.Random) -> int:
    """A run that is killed with its workers, and taken up; how many times."""
    for kills in range(MOST_KILLS + 1):
        process = started(out, changes, scratch)
        if ended(process, chance.uniform(0, usual) if kills < MOST_KILLS else 100 * usual):
            return kills
        workers = children(process.pid)
        for pid in (process.pid, *workers):
            kill(pid)
        process.wait()
    raise RuntimeError("the run does not come to an end")


def workers(out: Path, changes: Sequence[str], scratch: Path, usual: float, chance: random.Random) -> int:
    """A run of which workers are killed; how many times."""
    process, kills = started(out, changes, scratch), 0
    try:
        for _ in range(2):
            if ended(process, chance.uniform(0, usual)):
                return kills
            if found := children(process.pid):
                kill(chance.choice(found))
                kills += 1
        if not ended(process, 100 * usual):
            raise RuntimeError("the run does not come to an end")
    finally:
        kill(process.pid)
        process.wait()
    return kills


def soak(folder: Path, minutes: float, seed: int, changes: Sequence[str] = SMALL) -> str:
    """Trials for so many minutes, one of each kind at least; what was different, empty if nothing was."""
    chance, scratch = random.Random(seed), folder / "scratch"
    begun = time.monotonic()
    if not ended(started(folder / "straight", changes, scratch), 3600):
        return "the undisturbed run takes more than an hour"
    usual = time.monotonic() - begun
    print(f"undisturbed: {usual:.1f} s", flush=True)
    usual *= EARLY
    trial, killed, end = 0, 0, time.monotonic() + 60 * minutes
    while trial < 2 or time.monotonic() < end:
        kind = (whole, workers)[trial % 2]
        out = folder / f"{kind.__name__}-{trial:04d}"
        try:
            kills = kind(out, changes, scratch, usual, chance)
            found = difference(folder / "straight", out)
        except RuntimeError as error:
            found, kills = str(error), 0
        if found:
            return f"{out.name}: {found} (log: {scratch / out.name}.log)"
        print(f"{out.name}: killed {kills} times, the same bits", flush=True)
        shutil.rmtree(out)
        trial, killed = trial + 1, killed + kills
    print(f"{trial} runs, killed {killed} times: every bit as in an undisturbed run")
    return ""


if __name__ == "__main__":
    sys.exit(killing(__doc__, soak))
