"""Data sets from a NumPy archive: x_train, y_train, x_test, y_test and, optionally, natural clients and names."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded
from fedbnn.base.wording import listing, one_line
from fedbnn.data.dataset import Dataset, Names
from fedbnn.data.stored import Array, Half, Stored, dataset_of
from fedbnn.models.regression import Scale

ARRAYS: dict[Half, tuple[str, str]] = {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")}
NAMES = "fine_label_names"
MAGIC = np.lib.format.MAGIC_PREFIX
MAGIC_BYTES = 128  # of an array that holds nothing
MOST_NUMBERS = 2**40  # that a shape may speak of
LONGEST_HEADER = 10_000  # bytes, as NumPy has it
MOST_UNFOLDED = 1100  # bytes out of one: deflate makes at most 1032


def load_npz(path: str, tests: int = 0, scale: Scale | None = None) -> Dataset:
    """Read an archive without ever unpickling.

    Inputs of two dimensions are a table; N x H x W, N x H x W x C and N x C x H x W are images, whose
    uint8 values are divided by 255. Labels may be any integers or strings: they become 0 .. C - 1 in
    sorted order over train and test, and keep their names; an array `fine_label_names` gives integers names.
    With a scale they are real numbers.
    """
    return dataset_of(NpzFile(path, f"data.path = {path!r}"), Path(path).stem, tests=tests, scale=scale)


class NpzFile(Stored):
    """An archive of which at least the names of its arrays can be read."""

    def __init__(self, path: str | Path, origin: str) -> None:
        self.origin = origin
        self.path = expanded(path, origin)
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
        if group is None:
            return None
        if group.ndim != 1 or group.dtype.kind not in "biufU":
            raise UserError(
                f"{self.origin}: group_{half} is {group.dtype} of shape {group.shape}; one string a record is needed"
            )
        return group.astype(np.str_)

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
            except Exception:  # zipfile and NumPy fail in many ways where a file is made up
                archive = None
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(f"{self.origin} is not an npz archive (numpy.savez writes one)")
            with archive:
                yield archive

    def _member(self, archive: "np.lib.npyio.NpzFile", key: str) -> Array:
        try:
            assert archive.zip is not None  # it is open
            _check_size(archive.zip, key)
            array = archive[key]
        except Exception as error:
            raise UserError(
                f"{self.origin}: {key} cannot be read ({one_line(str(error), 300) or type(error).__name__}); "
                "only arrays of numbers or strings are loaded, never Python objects"
            ) from None
        if not isinstance(array, np.ndarray):
            raise UserError(f"{self.origin}: {key} is not a NumPy array")
        return array


def _check_size(archive: zipfile.ZipFile, key: str) -> None:
    """Raise ValueError where an array claims more than the file can hold: NumPy makes room before it reads."""
    info = archive.getinfo(key if key in archive.namelist() else f"{key}.npy")
    if info.file_size > MOST_UNFOLDED * info.compress_size + MAGIC_BYTES:
        raise ValueError(f"it claims {info.file_size} bytes, packed into {info.compress_size}")
    with archive.open(info) as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            return  # not an array at all
        version = stream.read(2)
        length = int.from_bytes(stream.read(2 if version[:1] == b"\x01" else 4), "little")
        header = BytesIO(length.to_bytes(4, "little") + stream.read(min(length, LONGEST_HEADER)))
    shape, _, kind = np.lib.format.read_array_header_2_0(header)
    whole = math.prod(max(size, 1) for size in shape) < MOST_NUMBERS  # a shape with a zero in it, too
    if not whole or (not kind.hasobject and math.prod(shape) * kind.itemsize > info.file_size):
        raise ValueError(f"it claims shape {shape} of {kind}, in {info.file_size} bytes")
