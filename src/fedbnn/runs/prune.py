"""Old runs that can go. Only folders that are provably run folders of ours, and never one that has a ledger.

What a client has spent stays spent when its run is gone: a ledger that is deleted would give the budget back. A run
whose ledgers are in its own folder therefore stays, whatever its age.
"""

import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.files import held, locked, read_json
from fedbnn.privacy.chain import LINES
from fedbnn.report.load import runs_of
from fedbnn.runs.collection import changed_at, find_runs, is_run, size_of
from fedbnn.runs.standing import standing

FILES = (
    "config.json",
    "partition.json",
    "metrics.jsonl",
    "notes.jsonl",
    "failure.json",
    "result.json",
    "report.html",
    ".lock",
    ".*.tmp",
)
FOLDERS = ("checkpoint", "ledgers", "sites", "tensorboard")
UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True)
class Old:
    """A run that is old enough, and why it stays all the same; empty where it can go."""

    folder: Path
    state: str
    seconds: float  # since something was last written to it
    bytes: int
    refusal: str = ""


def parse_age(text: str, option: str = "--older-than") -> float:
    """Seconds: 12h, 30d or 8w."""
    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text)
    if not found:
        raise UserError(f"{option} {text}: write hours, days or weeks, e.g. 12h, 30d or 8w")
    return int(found[1]) * UNITS[found[2]]


def old_runs(folder: Path, age: float, *, unfinished: bool = False, now: float | None = None) -> list[Old]:
    """Runs below the folder to which nothing was written for so many seconds; with `unfinished`, only such."""
    now = time.time() if now is None else now
    found = []
    for run in find_runs(folder):
        seconds, state = now - changed_at(run), standing(run).state
        if seconds >= age and not (unfinished and state == "finished"):
            busy = "a process is working on it" if held(run / ".lock") else ""
            found.append(Old(run, state, seconds, size_of(run), refusal(run) or busy))
    going = {one.folder.resolve() for one in found if not one.refusal}
    return [_with_its_comparison(one, going) for one in found]


def refusal(run: Path) -> str:
    """Why this folder must not be deleted; empty where it may be."""
    if not is_run(run):
        return "it is no run folder of ours"
    try:
        config, manifest = read_json(run / "config.json"), read_json(run / "partition.json")
        ours = {"method", "seed", "rounds", "data", "partition", "models"} <= config.keys() and {
            "dataset",
            "fingerprint",
            "clients",
        } <= manifest.keys()
    except (UserError, AttributeError):
        ours = False
    if not ours:
        return "its config.json and partition.json are not those of a run"
    if (run / "ledgers").is_symlink() or ((run / "ledgers").exists() and any((run / "ledgers").iterdir())):
        return "it has ledgers, on which privacy budgets hang: what is spent stays spent"
    for path in run.rglob("*"):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            return f"{path.relative_to(run)} in it is a link or no plain file"
        if path.name == LINES:
            return f"{path.relative_to(run)} in it is a ledger, on which a privacy budget hangs"
    for path in run.iterdir():
        known = FOLDERS if path.is_dir() else FILES
        if not any(fnmatch(path.name, one) for one in known):
            return f"{path.name} in it is not a run's"
    return ""


def _with_its_comparison(one: Old, going: set[Path]) -> Old:
    """A comparison goes as a whole or not at all: a listing of runs that are gone could not be read."""
    listing = one.folder.parent / "comparison.json"
    if one.refusal or not listing.exists():
        return one
    try:
        others = [path for path in runs_of(one.folder.parent) if path.exists() and path.resolve() not in going]
    except UserError:
        others = []
    if not others:
        return one
    words = f"it is part of a comparison of which {others[0].name} stays"
    return Old(one.folder, one.state, one.seconds, one.bytes, words)


def delete(runs: Sequence[Old]) -> list[Path]:
    """Delete those without a refusal, looked at once more; the folders that are gone."""
    gone = []
    for one in runs:
        if one.refusal:
            continue
        with suppress(UserError), locked(one.folder):  # in use: it stays
            if refusal(one.folder):
                continue
            # Under another name first: what has a run's name is always a whole run.
            leaving = one.folder.with_name(f".{one.folder.name}.gone")
            one.folder.replace(leaving)
            shutil.rmtree(leaving)
            gone.append(one.folder)
    for parent in {folder.parent for folder in gone}:
        _forget_comparison(parent)
    return gone


def _forget_comparison(folder: Path) -> None:
    """The listing, report and folder of a comparison whose runs are all gone."""
    if (folder / "comparison.json").exists() and not any(path.exists() for path in runs_of(folder)):
        for name in ("comparison.json", "report.html"):
            (folder / name).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
