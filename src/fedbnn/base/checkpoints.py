"""The last rounds of something that goes on, each in a folder that appears only when it is whole and on disk.

FOLDER/round-00007/             what was saved, and manifest.json with the checksum of each file
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.files import secure, write_json

KEPT = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that passed its checksums."""

    folder: Path
    round_number: int
    seconds: float
    problems: tuple[str, ...]  # newer checkpoints that did not pass, and why


class Checkpoints:
    """Those of one folder; `start_again` says what to do where none of them is any good."""

    def __init__(self, folder: Path, start_again: str) -> None:
        self.folder = folder
        self._start_again = start_again

    def save(self, round_number: int, seconds: float, write: Callable[[Path], None]) -> None:
        """`write` puts its files into a new folder, which appears under its name only when it is whole."""
        temporary = self.folder / ".new"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        files = sorted(temporary.iterdir())
        for file in files:
            secure(file)
        sums = {file.name: _checksum(file) for file in files}
        write_json(temporary / MANIFEST, {"round": round_number, "seconds": seconds, "sha256": sums})
        secure(temporary)
        final = self.folder / f"round-{round_number:05d}"
        shutil.rmtree(final, ignore_errors=True)
        temporary.replace(final)
        secure(self.folder)
        for old in self._saved()[KEPT:]:
            shutil.rmtree(old)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that passes its checksums, or None where nothing was saved yet."""
        problems: list[str] = []
        for folder in self._saved():
            problem = _verify(folder)
            if not problem:
                manifest = json.loads((folder / MANIFEST).read_text())
                return Checkpoint(folder, manifest["round"], manifest["seconds"], tuple(problems))
            problems.append(f"checkpoint {folder.name} is corrupt ({problem})")
        if problems:
            raise UserError(f"{'; '.join(problems)}; no good one is left: {self._start_again}")
        return None

    def _saved(self) -> list[Path]:
        return sorted(self.folder.glob("round-*"), reverse=True)


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _verify(folder: Path) -> str:
    """What is wrong with a checkpoint; empty if nothing is."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sums = manifest["sha256"]
        if f"round-{manifest['round']:05d}" != folder.name or not isinstance(manifest["seconds"], float) or not sums:
            return "manifest.json does not fit"
        for name, expected in sums.items():
            if _checksum(folder / name) != expected:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""
