"""Data sets from a NumPy archive: x_train, y_train, x_test, y_test and, optionally, natural clients and names."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.data.dataset import Dataset, Names
from fedbnn.data.stored import Array, Half, Stored, dataset_of

ARRAYS: dict[Half, tuple[str, str]] = {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")}
NAMES = "fine_label_names"


def load_npz(path: str, tests: int = 0) -> Dataset:
    """Read an archive without ever unpickling.

    Inputs of two dimensions are a table; N x H x W, N x H x W x C and N x C x H x W are images, whose
    uint8 values are divided by 255. Labels may be any integers or strings: they become 0 .. C - 1 in
    sorted order over train and test, and keep their names; an array `fine_label_names` gives integers names.
    """
    return dataset_of(NpzFile(path, f"data.path = {path!r}"), Path(path).stem, tests=tests)


class NpzFile(Stored):
    """An archive of which at least the names of its arrays can be read."""

    def __init__(self, path: str | Path, origin: str) -> None:
        self.origin = origin
        self.path = Path(path).expanduser()
        with self._open() as archive:
            self.files = tuple(archive.files)
        self.halves = tuple(half for half, keys in ARRAYS.items() if all(key in self.files for key in keys))

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        wanted = [key for half in halves for key in ARRAYS[half]]
        if missing := [key for key in wanted if key not in self.files]:
            raise UserError(f"{self.origin} has no array {listing(missing)}; it has: {listing(self.files)}")
        return {half: (self.array(ARRAYS[half][0]), self.array(ARRAYS[half][1])) for half in halves}

    def names(self) -> tuple[str, ...]:
        names = self._optional(NAMES)
        if names is None:
            return ()
        if names.ndim != 1 or names.dtype.kind != "U":
            raise UserError(f"{self.origin}: {NAMES} is {names.dtype} of shape {names.shape}; strings are needed")
        return tuple(names.tolist())

    def group(self, half: Half) -> Names | None:
        group = self._optional(f"group_{half}")
        return None if group is None else group.astype(np.str_)

    def array(self, key: str) -> Array:
        """One array by its name."""
        if key not in self.files:
            raise UserError(f"{self.origin} has no array {key!r}; it has: {listing(self.files)}")
        with self._open() as archive:
            return self._member(archive, key)

    def _optional(self, key: str) -> Array | None:
        return self.array(key) if key in self.files else None

    @contextmanager
    def _open(self) -> Iterator["np.lib.npyio.NpzFile"]:
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            raise UserError(f"{self.origin}: there is no such file") from None
        except OSError as error:
            raise UserError(f"{self.origin}: cannot be read: {error.strerror}") from None
        with stream:
            try:
                archive = np.load(stream, allow_pickle=False)
            except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile):
                archive = None
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(f"{self.origin} is not an npz archive (numpy.savez writes one)")
            with archive:
                yield archive

    def _member(self, archive: "np.lib.npyio.NpzFile", key: str) -> Array:
        try:
            array = archive[key]
        except (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{self.origin}: {key} cannot be read ({reason}); "
                "only arrays of numbers or strings are loaded, never Python objects"
            ) from None
        if not isinstance(array, np.ndarray):
            raise UserError(f"{self.origin}: {key} is not a NumPy array")
        return array
