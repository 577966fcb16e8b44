"""CIFAR-10 and CIFAR-100 as their authors publish them: binary or Python batches, in a folder or still in the archive.

A binary record is its labels (CIFAR-100: coarse, then fine), one byte each, and 3 x 32 x 32 bytes of red, green and
blue. A Python batch is a pickled dictionary with `data`, one such row of bytes a record, and `labels` or `fine_labels`
(Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html).
"""

import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.data import safe_pickle
from fedbnn.data.stored import Array, Half, Stored

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """How one publication is laid out; `label_bytes` is 0 for Python batches."""

    folder: str
    archive: str
    members: dict[Half, tuple[str, ...]]
    names: str
    label_bytes: int


def _batches(ending: str) -> dict[Half, tuple[str, ...]]:
    return {"train": tuple(f"data_batch_{i}{ending}" for i in range(1, 6)), "test": (f"test_batch{ending}",)}


def _single(ending: str) -> dict[Half, tuple[str, ...]]:
    return {"train": (f"train{ending}",), "test": (f"test{ending}",)}


LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "cifar10": (
        Layout("cifar-10-batches-bin", "cifar-10-binary.tar.gz", _batches(".bin"), "batches.meta.txt", 1),
        Layout("cifar-10-batches-py", "cifar-10-python.tar.gz", _batches(""), "batches.meta", 0),
    ),
    "cifar100": (
        Layout("cifar-100-binary", "cifar-100-binary.tar.gz", _single(".bin"), "fine_label_names.txt", 2),
        Layout("cifar-100-python", "cifar-100-python.tar.gz", _single(""), "meta", 0),
    ),
}


def cifar_files(name: str, folder: Path, origin: str) -> "list[CifarFiles]":
    """The batches of this data set in a folder: unpacked ones, which are quicker to read, go first."""
    layouts = LAYOUTS[name]
    unpacked = [CifarFiles(folder / one.folder, one, origin) for one in layouts if (folder / one.folder).is_dir()]
    packed = [CifarFiles(folder / one.archive, one, origin) for one in layouts if (folder / one.archive).is_file()]
    return unpacked + packed


class CifarFiles(Stored):
    """Batches of one layout. An archive is taken to be whole until it is read."""

    def __init__(self, path: Path, layout: Layout, origin: str) -> None:
        self.origin, self.path, self.layout = origin, path, layout
        self.packed = path.is_file()
        self.halves = tuple(
            half
            for half, members in layout.members.items()
            if self.packed or all((path / member).is_file() for member in members)
        )

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        contents = self._contents([member for half in halves for member in self.layout.members[half]])
        arrays: dict[Half, tuple[Array, Array]] = {}
        for half in halves:
            batches = [self._batch(member, contents.pop(member)) for member in self.layout.members[half]]
            arrays[half] = (np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches]))
        return arrays

    def names(self) -> tuple[str, ...]:
        member = self.layout.names
        if not self.packed and not (self.path / member).is_file():
            return ()
        content = self._contents([member])[member]
        if self.layout.label_bytes:
            names: Any = [line.strip() for line in content.splitlines() if line.strip()]
        else:
            meta = self._unpickled(member, content)
            names = meta.get("fine_label_names", meta.get("label_names", []))
        try:
            return tuple(name if isinstance(name, str) else bytes.decode(name) for name in names)
        except (TypeError, UnicodeDecodeError):
            raise self._error(member, "the names of classes are not a list of texts in UTF-8") from None

    def _batch(self, member: str, content: bytes) -> tuple[Array, Array]:
        if label_bytes := self.layout.label_bytes:
            size = label_bytes + PIXELS
            if not content or len(content) % size:
                raise self._error(member, f"{len(content)} bytes are no whole number of records of {size}")
            rows = np.frombuffer(content, np.uint8).reshape(-1, size)
            return rows[:, label_bytes:].reshape(-1, *SHAPE), rows[:, label_bytes - 1]
        batch = self._unpickled(member, content)
        data, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS:
            raise self._error(member, f"'data' is not an array of {PIXELS} bytes a record")
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise self._error(member, "'labels' or 'fine_labels' is not a list of whole numbers")
        if len(labels) != len(data):
            raise self._error(member, f"{len(data)} records but {len(labels)} labels")
        return data.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64)

    def _unpickled(self, member: str, content: bytes) -> dict[Any, Any]:
        try:
            return safe_pickle.load(content)
        except safe_pickle.BadPickle as error:
            raise self._error(member, f"refused: {error}") from None

    def _contents(self, members: Sequence[str]) -> dict[str, bytes]:
        """The bytes of these files, in one pass over the archive."""
        if not self.packed:
            try:
                return {member: (self.path / member).read_bytes() for member in members}
            except OSError as error:
                raise UserError(f"{self.origin}: {error.filename} cannot be read: {error.strerror}") from None
        wanted = {f"{self.layout.folder}/{member}": member for member in members}
        contents: dict[str, bytes] = {}
        try:
            with tarfile.open(self.path, "r:gz") as archive:
                for entry in archive:
                    member = wanted.get(entry.name.removeprefix("./"))
                    stream = archive.extractfile(entry) if member is not None and entry.isreg() else None
                    if member is not None and stream is not None:
                        contents[member] = stream.read()
                    if len(contents) == len(wanted):
                        return contents
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise UserError(f"{self.origin}: {self.path} cannot be read: {error}") from None
        raise self._error(next(name for name in members if name not in contents), "is not in the archive")

    def _error(self, member: str, text: str) -> UserError:
        return UserError(f"{self.origin}: {self.path}, {member}: {text}")
