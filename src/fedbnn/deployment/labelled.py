"""Labelled records of a file, to calibrate predictions with: an .npz with arrays x and y, or a .csv with its target."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing
from fedbnn.data.csv_source import Table, class_name
from fedbnn.data.dataset import Floats, Labels, check_records
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.stored import inputs_of


def read_labelled(
    source: Path, class_names: Sequence[str], target: str, columns: Sequence[str], shape: tuple[int, ...]
) -> tuple[Floats, Labels]:
    """Inputs as loaded, and labels: names of classes, or in an .npz whole numbers 0 .. C - 1.

    Of a .csv these columns are read by name, or all but the target where none are given.
    """
    origin = f"--calibration {source}"
    match source.suffix:
        case ".npz":
            file = NpzFile(source, origin)
            x, labels = inputs_of(origin, "x", file.array("x")), file.array("y")
            if labels.ndim != 1 or labels.dtype.kind not in "iuU":
                raise UserError(
                    f"{origin}: y is {labels.dtype} of shape {labels.shape}; one class name or whole number a record"
                )
            texts = labels.dtype.kind == "U"
            y = _named(origin, labels.tolist(), class_names) if texts else labels.astype(np.int64)
        case ".csv":
            table = Table.read(source, origin)
            if not target:
                raise UserError(f"{origin}: the run's own records have no target column; give an .npz with x and y")
            at = table.column("target", target)
            named = columns or [name for name in table.header if name != target]
            x = table.numbers([table.column("feature", name) for name in named])
            y = _named(origin, table.texts(at), class_names)
        case _:
            raise UserError(f"{origin}: its name must end in .npz or .csv")
    if x.shape[1:] != shape:
        raise UserError(f"{origin}: a record has shape {x.shape[1:]}, those of the run have {shape}")
    check_records(origin, "calibration", x, y, len(class_names))
    return x, y


def _named(origin: str, texts: Sequence[str], names: Sequence[str]) -> Labels:
    index = {name: i for i, name in enumerate(names)}
    labels = [index.get(text, index.get(class_name(text), -1)) for text in texts]
    if -1 in labels:
        wrong = texts[labels.index(-1)]
        raise UserError(
            f"{origin}: {wrong!r} is not a class{did_you_mean(wrong, names)} (classes: {listing(list(names))})"
        )
    return np.array(labels, dtype=np.int64)
