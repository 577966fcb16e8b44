"""The run folder: configuration, metrics as JSON lines, checkpoints, result. Every file is replaced atomically.

config.json       everything that has an influence on the result
partition.json    who holds which records
metrics.jsonl     one line per round and client
checkpoint/       states after the last rounds, each with checksums
result.json       written last: a folder that has it is a finished run
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn.errors import UserError

KEPT_CHECKPOINTS = 2


def write_atomically(path: Path, text: str) -> None:
    """The file is either as it was or whole and on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that passed its checksums."""

    folder: Path
    round_number: int
    seconds: float
    problems: tuple[str, ...]  # newer checkpoints that did not pass, and why


class RunFolder:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.metrics_file = path / "metrics.jsonl"

    @classmethod
    def open(cls, path: Path, config: dict[str, Any], manifest: dict[str, Any], *, resume: bool) -> "RunFolder":
        """A new folder, or with `resume` the one that already holds this configuration."""
        cls.check(path, config, manifest, resume=resume)
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
    def check(cls, path: Path, config: dict[str, Any], manifest: dict[str, Any], *, resume: bool) -> None:
        """Refuse, before anything is written, a folder that `open` could not use."""
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; choose another --out")
        if (path / "config.json").exists():
            folder._check_same(config, manifest)
            if not resume:
                state = "finished" if folder.finished else "unfinished"
                raise UserError(
                    f"{path} already holds this run ({state}): add --resume to go on, or choose another --out"
                )
        elif path.exists() and any(path.iterdir()):
            raise UserError(f"{path} is not empty and holds no run: choose another --out")

    def _check_same(self, config: dict[str, Any], manifest: dict[str, Any]) -> None:
        before = read_json(self.path / "config.json")
        if before != config:
            changed = differences(before, config)
            raise UserError(f"{self.path} holds a run with another configuration ({changed}): choose another --out")
        if read_json(self.path / "partition.json") != manifest:
            raise UserError(f"{self.path} holds a run on other data with the same configuration: choose another --out")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works on this folder meanwhile; the lock goes with the process that holds it."""
        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path} is being worked on by another process: wait for it or stop it") from None
            yield

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.exists():
            return []
        return [json.loads(line) for line in self.metrics_file.read_text(encoding="utf-8").splitlines()]

    def forget_after(self, round_number: int) -> None:
        """Drop metrics of rounds after this one, which a resumed run makes again; a torn last line goes too."""
        if not self.metrics_file.exists():
            return
        kept = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["round"] <= round_number:
                    kept.append(line + "\n")
            except ValueError:
                break
        write_atomically(self.metrics_file, "".join(kept))

    def save_checkpoint(self, round_number: int, seconds: float, write: Callable[[Path], None]) -> None:
        """`write` puts its files into a new folder, which appears under its name only when it is whole."""
        temporary = self.checkpoints / ".new"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        sums = {file.name: _checksum(file) for file in sorted(temporary.iterdir())}
        write_json(temporary / "manifest.json", {"round": round_number, "seconds": seconds, "sha256": sums})
        final = self.checkpoints / f"round-{round_number:05d}"
        shutil.rmtree(final, ignore_errors=True)
        temporary.replace(final)
        for old in self._saved()[KEPT_CHECKPOINTS:]:
            shutil.rmtree(old)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that passes its checksums, or None where nothing was saved yet."""
        problems: list[str] = []
        for folder in self._saved():
            problem = _verify(folder)
            if not problem:
                manifest = json.loads((folder / "manifest.json").read_text())
                return Checkpoint(folder, manifest["round"], manifest["seconds"], tuple(problems))
            problems.append(f"checkpoint {folder.name} is corrupt ({problem})")
        if problems:
            raise UserError(f"{'; '.join(problems)}; no good one is left: delete {self.path} to start again")
        return None

    def _saved(self) -> list[Path]:
        return sorted(self.checkpoints.glob("round-*"), reverse=True)


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _verify(folder: Path) -> str:
    """What is wrong with a checkpoint; empty if nothing is."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        sums = manifest["sha256"]
        if f"round-{manifest['round']:05d}" != folder.name or not isinstance(manifest["seconds"], float) or not sums:
            return "manifest.json does not fit"
        for name, expected in sums.items():
            if _checksum(folder / name) != expected:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""


def differences(before: Any, now: Any, prefix: str = "") -> str:
    """The first few dotted keys in which two nested objects differ, with both values."""
    found = list(_differences(before, now, prefix))
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more


def _differences(before: Any, now: Any, prefix: str) -> Iterable[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from _differences(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else key)
    elif before != now:
        yield f"{prefix} was {before!r}, is {now!r}"
