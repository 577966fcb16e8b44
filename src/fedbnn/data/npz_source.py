"""Data sets from a NumPy archive: x_train, y_train, x_test, y_test and, optionally, natural clients."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn.data.dataset import Dataset, Floats, Labels, Names
from fedbnn.data.nearest import listing
from fedbnn.errors import UserError

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("group_train", "group_test")
CHANNELS = (1, 3, 4)

Array = NDArray[Any]


def load_npz(path: str) -> Dataset:
    """Read an archive without ever unpickling.

    Inputs of two dimensions are a table; N x H x W, N x H x W x C and N x C x H x W are images, whose
    uint8 values are divided by 255. Labels may be any integers or strings: they become 0 .. C - 1 in
    sorted order over train and test, and keep their names.
    """
    arrays = _read(path)
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise UserError(
            f"data.path = {path!r}: x_train is {x_train.dtype} and x_test {x_test.dtype}: "
            "uint8 images are divided by 255, others are not, so both must be the same"
        )
    y_train, y_test, class_names = _labels(path, arrays["y_train"], arrays["y_test"])
    return Dataset(
        name=Path(path).stem,
        x_train=_inputs(path, "x_train", x_train),
        y_train=y_train,
        x_test=_inputs(path, "x_test", x_test),
        y_test=y_test,
        class_names=class_names,
        group_train=_groups(arrays.get("group_train")),
        group_test=_groups(arrays.get("group_test")),
    )


def _read(path: str) -> dict[str, Array]:
    try:
        stream = Path(path).expanduser().open("rb")
    except FileNotFoundError:
        raise UserError(f"data.path = {path!r}: there is no such file") from None
    except OSError as error:
        raise UserError(f"data.path = {path!r}: cannot be read: {error.strerror}") from None
    with stream:
        try:
            archive = np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile):
            archive = None
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UserError(f"data.path = {path!r} is not an npz archive (numpy.savez writes one)")
        with archive:
            if missing := [key for key in REQUIRED if key not in archive.files]:
                raise UserError(
                    f"data.path = {path!r} has no array {listing(missing)}; it has: {listing(archive.files)}"
                )
            return {key: _member(path, archive, key) for key in (*REQUIRED, *OPTIONAL) if key in archive.files}


def _member(path: str, archive: "np.lib.npyio.NpzFile", key: str) -> Array:
    try:
        array = archive[key]
    except (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"data.path = {path!r}: {key} cannot be read ({reason}); "
            "only arrays of numbers or strings are loaded, never Python objects"
        ) from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"data.path = {path!r}: {key} is not a NumPy array")
    return array


def _inputs(path: str, key: str, x: Array) -> Floats:
    if x.dtype.kind not in "biuf":
        raise UserError(f"data.path = {path!r}: {key} is {x.dtype}; numbers are needed")
    with np.errstate(over="ignore"):
        values = x.astype(np.float32)
    if x.ndim == 2:
        return values
    if x.dtype == np.uint8:
        values /= np.float32(255)
    if x.ndim == 3:
        return values[:, None]
    if x.ndim == 4 and x.shape[3] in CHANNELS:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    if x.ndim == 4 and x.shape[1] in CHANNELS:
        return values
    raise UserError(
        f"data.path = {path!r}: {key} has shape {x.shape}; a table N x F or images N x H x W, N x H x W x C "
        "or N x C x H x W with C = 1, 3 or 4 are needed"
    )


def _labels(path: str, train: Array, test: Array) -> tuple[Labels, Labels, tuple[str, ...]]:
    flat: list[Array] = []
    for key, y in (("y_train", train), ("y_test", test)):
        column = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if column.dtype.kind not in "biuU" or column.ndim != 1:
            raise UserError(
                f"data.path = {path!r}: {key} is {y.dtype} of shape {y.shape}; one integer or string a record is needed"
            )
        flat.append(column)
    if (flat[0].dtype.kind == "U") != (flat[1].dtype.kind == "U"):
        raise UserError(
            f"data.path = {path!r}: y_train is {train.dtype} and y_test {test.dtype}: both must be integers "
            "or both strings"
        )
    values = sorted(set(flat[0].tolist()) | set(flat[1].tolist()))
    position = {value: index for index, value in enumerate(values)}
    y_train, y_test = (np.array([position[value] for value in column.tolist()], dtype=np.int64) for column in flat)
    return y_train, y_test, tuple(str(value) for value in values)


def _groups(group: Array | None) -> Names | None:
    return None if group is None else group.astype(np.str_)
