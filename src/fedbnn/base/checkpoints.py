"""The last rounds of something that goes on, each in a folder that appears only when it is whole and on disk.

FOLDER/round-00007/             what was saved, and manifest.json with the checksum of each file
FOLDER/round-00007.2/           the same, after the second part of what follows that round
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.files import secure, telling, write_json

KEPT = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that passed its checksums."""

    folder: Path
    round_number: int
    seconds: float
    part: int
    problems: tuple[str, ...]  # newer checkpoints that did not pass, and why


class Checkpoints:
    """The last `kept` of one folder; `start_again` says what to do where none of them is any good."""

    def __init__(self, folder: Path, start_again: str, kept: int = KEPT) -> None:
        self.folder = folder
        self._start_again = start_again
        self._kept = kept

    def save(self, round_number: int, seconds: float, write: Callable[[Path], None], part: int = 0) -> None:
        """`write` puts its files into a new folder, which appears under its name only when it is whole."""
        temporary = self.folder / ".new"
        try:
            with telling(self.folder):
                self._save(temporary, round_number, seconds, write, part)
        except UserError:
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the room
            raise

    def _save(
        self, temporary: Path, round_number: int, seconds: float, write: Callable[[Path], None], part: int
    ) -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        files = sorted(temporary.iterdir())
        for file in files:
            secure(file)
        sums = {file.name: _checksum(file) for file in files}
        facts = {"round": round_number, "seconds": seconds, "sha256": sums}
        write_json(temporary / MANIFEST, {**facts, "part": part} if part else facts)
        secure(temporary)
        final = self.folder / _name(round_number, part)
        shutil.rmtree(final, ignore_errors=True)
        temporary.replace(final)
        secure(self.folder)
        for old in self._saved()[self._kept :]:
            shutil.rmtree(old)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that passes its checksums, or None where nothing was saved yet."""
        problems: list[str] = []
        for folder in self._saved():
            problem = _verify(folder)
            if not problem:
                manifest = json.loads((folder / MANIFEST).read_text())
                return Checkpoint(
                    folder, manifest["round"], manifest["seconds"], manifest.get("part", 0), tuple(problems)
                )
            problems.append(f"checkpoint {folder.name} is corrupt ({problem})")
        if problems:
            raise UserError(f"{'; '.join(problems)}; no good one is left: {self._start_again}")
        return None

    def _saved(self) -> list[Path]:
        return sorted(self.folder.glob("round-*"), reverse=True)


def _name(round_number: int, part: int) -> str:
    """In the order of rounds and parts."""
    return f"round-{round_number:05d}" + (f".{part}" if part else "")


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _verify(folder: Path) -> str:
    """What is wrong with a checkpoint; empty if nothing is."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sums, seconds = manifest["sha256"], manifest["seconds"]
        named = _name(manifest["round"], manifest.get("part", 0)) == folder.name
        if not (named and isinstance(seconds, float) and math.isfinite(seconds) and sums):
            return "manifest.json does not fit"
        for name, expected in sums.items():
            file = folder / name
            if file.name != name or (file.exists() and not file.is_file()):  # a pipe would be waited for
                return f"{name!r:.100} is not a file of it"
            if _checksum(file) != expected:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return str(error) or type(error).__name__
    return ""
