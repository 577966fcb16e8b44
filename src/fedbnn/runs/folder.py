"""The run folder: configuration, metrics as JSON lines, checkpoints, result. Every file is replaced atomically.

config.json       everything that has an influence on the result
partition.json    who holds which records
preprocessing.json of a table: how its cells become inputs
metrics.jsonl     one line per round and client
checkpoint/       states after the last rounds, each with checksums
notes.jsonl       what the user was told meanwhile, if anything
failure.json      why the run failed, until it goes on
result.json       written last: a folder that has it is a finished run
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from fedbnn.base.checkpoints import Checkpoint, Checkpoints
from fedbnn.base.errors import UserError
from fedbnn.base.files import append, locked, read_json, secure, telling, write_atomically, write_json
from fedbnn.base.wording import one_line

__all__ = ["Checkpoint", "RunFolder", "changed", "differences", "read_json", "write_atomically", "write_json"]

Json = dict[str, Any]
PREPROCESSING = "preprocessing.json"
Replanned = Callable[[int, int], str]
"""Why a run of so many rounds cannot go on to so many; empty where it can."""
NOTES, FAILURE = "notes.jsonl", "failure.json"


class RunFolder:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.metrics_file = path / "metrics.jsonl"
        self._saved = Checkpoints(self.checkpoints, f"delete {path} to start again")

    @classmethod
    def open(
        cls,
        path: Path,
        config: Json,
        manifest: Json,
        *,
        resume: bool,
        today: Callable[[Json], Json] = dict,
        replanned: Replanned | None = None,
    ) -> "RunFolder":
        """A new folder, or with `resume` the one that already holds this configuration.

        `today` writes a stored configuration as this version would: with settings that did not exist yet. With
        `replanned`, the configuration may have more rounds than the folder's, unless it says why not.
        """
        cls.check(path, config, manifest, resume=resume, today=today, replanned=replanned)
        if not (path / "config.json").exists():
            # Made whole under another name, so that a folder with the run's name always is a run.
            new = path.with_name(f".{path.name}.new")
            try:
                shutil.rmtree(new, ignore_errors=True)
                (new / "checkpoint").mkdir(parents=True)
                write_json(new / "partition.json", manifest)
                write_json(new / "config.json", config)
                new.replace(path)
            except OSError as error:
                raise UserError(f"{path} cannot be made: {error.strerror}; choose another --out") from None
        return cls(path)

    @classmethod
    def check(
        cls,
        path: Path,
        config: Json,
        manifest: Json,
        *,
        resume: bool,
        today: Callable[[Json], Json] = dict,
        replanned: Replanned | None = None,
    ) -> None:
        """Refuse, before anything is written, a folder that `open` could not use."""
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; choose another --out")
        if (path / "config.json").exists():
            folder._check_same(config, manifest, today, replanned, resume)
            if not resume:
                state = "finished" if folder.finished else "unfinished"
                raise UserError(
                    f"{path} already holds this run ({state}): add --resume to go on, or choose another --out"
                )
        elif path.exists() and any(path.iterdir()):
            raise UserError(f"{path} is not empty and holds no run: choose another --out")

    def _check_same(
        self, config: Json, manifest: Json, today: Callable[[Json], Json], replanned: Replanned | None, resume: bool
    ) -> None:
        before = today(read_json(self.path / "config.json"))
        if before != config:
            changed = differences(before, config)
            more = isinstance(before, dict) and before | {"rounds": config.get("rounds")} == config
            more = more and type(before["rounds"]) is int and before["rounds"] < config["rounds"]
            if not (more and replanned and resume):
                what = "add --resume to go on to more rounds" if more and replanned else "delete it"
                raise UserError(
                    f"{self.path} holds a run with another configuration ({changed}): {what} or choose another --out"
                )
            if reason := replanned(before["rounds"], config["rounds"]):
                raise UserError(
                    f"{self.path} holds a run that cannot go on to more rounds ({changed}): {reason}; else choose "
                    "another --out"
                )
        if read_json(self.path / "partition.json") != manifest:
            raise UserError(f"{self.path} holds a run on other data with the same configuration: choose another --out")

    def locked(self) -> AbstractContextManager[None]:
        """Nobody else works on this folder meanwhile; the lock goes with the process that holds it."""
        return locked(self.path)

    def plan(self, config: Json) -> None:
        """Go on to the rounds of this configuration, if they are more: the result of fewer is none any more."""
        if read_json(self.path / "config.json")["rounds"] < config["rounds"]:
            with telling(self.path):
                (self.path / "result.json").unlink(missing_ok=True)
                secure(self.path)
                write_json(self.path / "config.json", config)

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def append(self, lines: Iterable[dict[str, Any]], name: str = "metrics.jsonl") -> None:
        with telling(self.path / name):
            append(self.path / name, "".join(json.dumps(line) + "\n" for line in lines))

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.exists():
            return []
        return [json.loads(line) for line in self.metrics_file.read_text(encoding="utf-8").splitlines()]

    def failed(self, error: Exception) -> None:
        """Write down why the run failed, as far as the disk still lets us."""
        with suppress(OSError):
            write_json(self.path / FAILURE, {"error": one_line(f"{type(error).__name__}: {error}", 1000)})

    def forget_failure(self) -> None:
        with telling(self.path):
            (self.path / FAILURE).unlink(missing_ok=True)

    def forget_after(self, round_number: int, changed: Callable[[Json], Json] = dict) -> None:
        """Drop metrics of rounds after this one, which a resumed run makes again; a torn last line goes too.

        `changed` makes of each line that stays what it is to be; nothing, and it goes.
        """
        if not self.metrics_file.exists():
            return
        kept, torn = [], 0
        for number, line in enumerate(self.metrics_file.read_bytes().splitlines(), 1):
            if (value := _of_a_round(line)) is None:
                torn = torn or number
            elif value["round"] <= round_number:
                if torn:  # not at the end: more than this line may be wrong
                    raise UserError(f"{self.metrics_file}: line {torn} is damaged; delete {self.path} to start again")
                new = changed(value)
                kept += [(line if new == value else json.dumps(new).encode()) + b"\n"] if new else []
        with telling(self.metrics_file):
            write_atomically(self.metrics_file, b"".join(kept))

    def conclude(self, result: Json) -> None:
        """Write the result: the run is finished."""
        with telling(self.path / "result.json"):
            write_json(self.path / "result.json", result)

    def save_checkpoint(self, round_number: int, seconds: float, write: Callable[[Path], None]) -> None:
        """`write` puts its files into a new folder, which appears under its name only when it is whole."""
        self._saved.save(round_number, seconds, write)

    def save_part(self, round_number: int, seconds: float, write: Callable[[Path], None]) -> None:
        """The same after a part of the round that follows this one."""
        before = self.latest_checkpoint()
        part = before.part if before and before.round_number == round_number else 0
        self._saved.save(round_number, seconds, write, part + 1)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that passes its checksums, or None where nothing was saved yet."""
        return self._saved.latest()


def _of_a_round(line: bytes) -> Json | None:
    """A line of metrics; None where it is not whole."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and type(value.get("round")) is int else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON that somebody may be writing just now: up to the first that is not whole."""
    found: list[dict[str, Any]] = []
    if not path.is_file():  # a pipe would be waited for, and a device has no end
        return found
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(value, dict):
                break
            found.append(value)
    return found


def differences(before: Any, now: Any) -> str:
    """The first few dotted keys in which two nested objects differ, with both values."""
    parts = [f"{key} was {old!r}, is {new!r}" for key, old, new in changed(before, now)]
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return ", ".join(parts[:3]) + more


def changed(before: Any, now: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every dotted key in which two nested objects differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from changed(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else key)
    elif before != now:
        yield prefix, before, now
