"""Files that are whole or not there, and folders that one process works on at a time."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedbnn.base.errors import UserError


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Errors of the operating system become one line that names the file."""
    try:
        yield
    except OSError as error:
        problem = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or error
        raise UserError(f"{path} cannot be used: {problem}") from None


def expanded(path: str | Path, origin: str) -> Path:
    """A path that a user wrote, with ~ in full; a mistake begins with `origin`."""
    try:
        if b"\0" not in os.fsencode(path):
            return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{origin}: there is no such user; write the path in full") from None
    except UnicodeEncodeError:
        pass
    raise UserError(f"{origin}: no file can have such a name")


def is_folder(path: Path) -> bool:
    """Whether a folder is there; no path, however odd, is an error."""
    try:
        return path.is_dir()
    except OSError:  # too long a name, for instance
        return False


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """The file is either as it was or new, whole and on disk, under its name too; `mode` is what umask takes from."""
    data = content.encode() if isinstance(content, str) else content
    # The number keeps two processes apart that write the same file; what a dead one left is written over.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_all(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, path)  # noqa: PTH105 (every step is a call of os, which tests count)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    secure(path.parent)


def append(path: Path, content: str) -> None:
    """The content at the end of the file, whole and on disk; after an error the file is as it was."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        before = os.fstat(file).st_size
        try:
            write_all(file, content.encode())
            os.fsync(file)
        except OSError:
            os.ftruncate(file, before)
            raise
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    write_atomically(path, json.dumps(value, indent=2) + "\n", mode)


def read_json(path: Path) -> Any:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, and a device has no end
            raise UserError(f"{path} cannot be read: it is not a file")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def secure(path: Path) -> None:
    """What a file holds, or which names a folder has, is on disk when this returns."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """The folder and those above it, on disk; new ones with this mode, which umask takes from."""
    with telling(path):
        for folder in [*reversed(path.parents), path]:
            if not folder.exists():
                folder.mkdir(mode, exist_ok=True)
                secure(folder.parent)
        if not path.is_dir():
            raise UserError(f"{path} is not a folder")


def held(lock: Path) -> bool | None:
    """Whether a process holds this lock of `locked`, found without touching it; None where the system does not tell."""
    try:
        where = lock.stat()
        table = Path("/proc/locks").read_text(encoding="ascii")
    except FileNotFoundError:
        return False if Path("/proc/locks").exists() else None
    except (OSError, ValueError):
        return None
    place = f"{os.major(where.st_dev):02x}:{os.minor(where.st_dev):02x}:{where.st_ino}"
    return any(place in line.split() for line in table.splitlines())


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Nobody else works on this folder meanwhile; the lock goes with the process that holds it.

    Where the file system has no such locks, this fails: a file that stands for a lock would outlive its process.
    """
    lock = FileLock(folder / name, blocking=False, fallback_to_soft=False)
    with telling(folder / name):
        try:
            lock.acquire()
        except Timeout:
            raise UserError(f"{folder} is in use by another process: wait for it or stop it") from None
    try:
        yield
    finally:
        lock.release()
