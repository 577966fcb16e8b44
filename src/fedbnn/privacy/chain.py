"""A file of JSON lines that is only ever appended to, in a way that shows whether any line is missing or was changed.

    line_k = {"previous": h_(k-1), ...},   h_k = SHA-256(line_k with its line feed),   h_0 = ""

ledger.jsonl    the lines
head.json       k and h_k of the last line, replaced after each append: shows that lines are missing at the end

A line counts once `append` returns: by then it is on disk, and so is the head. If the process dies in between, the file
may be one line ahead of the head, never more. This guards against accidents and careless hands, not against the owner
of the folder, who can calculate all hashes anew or put an older copy of the whole folder in place.
"""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

from fedbnn.base.errors import UserError
from fedbnn.base.files import secure, telling, write_all, write_atomically

LINES = "ledger.jsonl"
HEAD = "head.json"

Row = dict[str, Any]

RESTORE = (
    "restore the newest backup of the whole folder, if nothing was released since; "
    "otherwise what was spent is unknown and nothing more may be released from this data"
)


class Chain:
    """The lines of one folder, verified; of several writers the caller must make sure that there is one at a time."""

    def __init__(self, folder: Path, rows: list[Row], size: int, last: str) -> None:
        self.folder = folder
        self.rows = rows
        self._size = size  # of the file, in bytes
        self._last = last  # hash of the last line
        self._sound = True  # False from the start of an append to its end: what is on disk is not known after a failure

    @classmethod
    def create(cls, folder: Path, first: Row) -> "Chain":
        row = {"previous": "", **first}
        line = _encode(row)
        write_durably(folder / LINES, line)
        chain = cls(folder, [row], len(line), _sha256(line))
        chain._write_head()
        return chain

    @classmethod
    def load(cls, folder: Path, *, repair: bool = False) -> "Chain | None":
        """What is in the folder, None if it holds neither file; `repair` moves a head on that is one line behind."""
        head = _read_head(folder)  # first: a writer that is at work meanwhile only ever adds lines
        data = read_file(folder / LINES)
        if data is None:
            if head is not None:
                refuse(folder, f"{LINES} is missing, while {HEAD} counts lines: {head[0]}")
            return None
        counted = 0 if head is None else head[0]
        rows, hashes = _parse(folder, data, counted)
        if head is None and len(rows) > 1:
            refuse(folder, f"{HEAD} is missing")
        if len(rows) < counted:
            refuse(folder, f"{LINES} has {len(rows)} lines and {HEAD} counts {counted}: lines are missing at the end")
        if len(rows) > counted + 1:
            refuse(folder, f"{LINES} has {len(rows)} lines and {HEAD} counts {counted}: {HEAD} is not of this file")
        if head is not None and hashes[counted - 1] != head[1]:
            refuse(folder, f"line {counted} of {LINES} is not the one {HEAD} was written for: one of them was changed")
        chain = cls(folder, rows, len(data), hashes[-1])
        if repair and len(rows) > counted:
            with telling(folder / LINES):
                secure(folder / LINES)  # the process may have died before
            chain._write_head()
        return chain

    def append(self, fields: Row) -> None:
        """On disk when this returns; after an error the folder has to be loaded again."""
        if not self._sound:
            raise UserError(f"{self.folder}: writing failed before: open it again to see what was written")
        row = {"previous": self._last, **fields}
        line = _encode(row)
        self._sound = False
        path = self.folder / LINES
        with telling(path):
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(file).st_size != self._size:
                    refuse(self.folder, f"{LINES} was changed by somebody else while it was in use")
                try:
                    write_all(file, line)
                except OSError:
                    os.ftruncate(file, self._size)  # a full disk shall not leave half a line behind
                    raise
                os.fsync(file)
            finally:
                os.close(file)
        self.rows.append(row)
        self._size += len(line)
        self._last = _sha256(line)
        self._write_head()
        self._sound = True

    def _write_head(self) -> None:
        write_durably(self.folder / HEAD, _encode({"count": len(self.rows), "sha256": self._last}))


def refuse(folder: Path, problem: str) -> NoReturn:
    raise UserError(f"{folder}: {problem}; {RESTORE}")


def read_file(path: Path) -> bytes | None:
    """The bytes of a regular file, None if there is none; a symbolic link is refused, wherever it leads."""
    with telling(path):
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UserError(f"{path} is not a file")
            with os.fdopen(file, "rb", closefd=False) as stream:
                return stream.read()
        finally:
            os.close(file)


def write_durably(path: Path, data: bytes) -> None:
    """Whole and on disk, for nobody but its owner to read."""
    with telling(path):
        write_atomically(path, data, 0o600)


def _encode(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _decode(line: bytes) -> Row:
    """Exactly what `_encode` made of some row; ValueError for anything else, such as NaN, other spaces, a key twice."""
    row = json.loads(line)
    if not isinstance(row, dict) or _encode(row) != line:
        raise ValueError("not in the form in which lines are written")
    return row


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _parse(folder: Path, data: bytes, counted: int) -> tuple[list[Row], list[str]]:
    lines = data.splitlines(keepends=True)
    rows: list[Row] = []
    hashes: list[str] = []
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith(b"\n"):
            if number <= counted:
                refuse(folder, f"line {number} of {LINES}, the last one, is torn")
            raise UserError(
                f"{folder}: line {number} of {LINES}, the last one, is torn: the machine stopped while it was written, "
                "before anything that depends on it was done; remove this one line, and nothing else, to go on"
            )
        try:
            row = _decode(line)
        except (ValueError, RecursionError) as error:
            refuse(folder, f"line {number} of {LINES} is not valid ({error})")
        if row.get("previous") != (hashes[-1] if hashes else ""):
            refuse(folder, f"line {number} of {LINES} does not follow from the line before: one of them was changed")
        rows.append(row)
        hashes.append(_sha256(line))
    if not rows:
        refuse(folder, f"{LINES} is empty")
    return rows, hashes


def _read_head(folder: Path) -> tuple[int, str] | None:
    data = read_file(folder / HEAD)
    if data is None:
        return None
    try:
        row = _decode(data)
        count, sha256 = row.pop("count"), row.pop("sha256")
    except (ValueError, KeyError, RecursionError) as error:
        refuse(folder, f"{HEAD} is not valid ({error})")
    if type(count) is not int or count < 1 or type(sha256) is not str or row:
        refuse(folder, f"{HEAD} is not valid")
    return count, sha256
