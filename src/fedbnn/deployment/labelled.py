"""Labelled records, to calibrate predictions with: an .npz with arrays x and y, or a table with its target.

In regression, where there are no classes, labels are real numbers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing
from fedbnn.data.csv_source import Table, class_name, number
from fedbnn.data.dataset import Floats, Targets, check_records
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.stored import inputs_of
from fedbnn.data.tables.layout import Layout
from fedbnn.data.targets import measured
from fedbnn.deployment.new_records import TABLES, CodedTables, NewRecords
from fedbnn.federation.inputs import Inputs


def read_labelled(
    source: Path,
    class_names: Sequence[str],
    target: str,
    columns: Sequence[str],
    shape: tuple[int, ...],
    layout: Layout,
    coded: CodedTables | None = None,
) -> tuple[Floats, Targets]:
    """Inputs as loaded, and labels: names of classes, or in an .npz whole numbers 0 .. C - 1.

    Of a .csv these columns are read by name, or all but the target where none are given; of a table whose columns are
    `coded`, as those say.
    """
    origin = f"--calibration {source}"
    if source.suffix == ".npz":
        file = NpzFile(source, origin)
        x, labels = inputs_of(origin, "x", file.array("x")), file.array("y")
        if not class_names:
            y: Targets = measured(origin, "y", labels)
        elif labels.ndim != 1 or labels.dtype.kind not in "iuU":
            raise UserError(
                f"{origin}: y is {labels.dtype} of shape {labels.shape}; one class name or whole number a record"
            )
        else:
            y = labels_of(labels, class_names, origin) if labels.dtype.kind == "U" else labels.astype(np.int64)
    elif coded is not None and source.suffix in TABLES:
        x, y = labelled(coded.file(source, origin), class_names, coded.target, origin)
    elif source.suffix == ".csv":
        table = Table.read(source, origin, layout.delimiter, layout.encoding)
        if not target:
            raise UserError(f"{origin}: the run's own records have no target column; give an .npz with x and y")
        at = table.column("target", target)
        named = columns or [name for name in table.header if name != target]
        x = table.numbers([table.column("feature", name) for name in named])
        texts = table.texts(at)
        there = texts if class_names else ["" if text in layout.missing else text for text in texts]
        y = labels_of(there, class_names, origin, layout.decimal)
    else:
        raise UserError(f"{origin}: its name must end in .npz or .csv")
    if x.shape[1:] != shape:
        raise UserError(f"{origin}: a record has shape {x.shape[1:]}, those of the run have {shape}")
    check_records(origin, "calibration", x, y, len(class_names))
    return x, y


def labelled(records: NewRecords, class_names: Sequence[str], target: str, origin: str) -> tuple[Floats, Targets]:
    """Inputs and labels of a table that has the target column."""
    if records.targets is None:
        raise UserError(f"{origin} has no column {target!r}, which holds the {'class' if class_names else 'number'}")
    return records.x, labels_of(records.targets, class_names, origin, records.decimal)


def labels_of(given: Inputs, class_names: Sequence[str], origin: str, decimal: str = ".") -> Targets:
    """Labels by the names of their classes, or in memory by their numbers 0 .. C - 1; without classes, real numbers."""
    if not class_names:
        values = [number(str(one), decimal) for one in np.asarray(given).ravel().tolist()]
        if None in values:
            raise UserError(f"{origin}: record {values.index(None)} has no finite number to predict")
        return np.array(values, dtype=np.float32)
    index: dict[Any, int] = {name: i for i, name in enumerate(class_names)}
    found = []
    for one in np.asarray(given).ravel().tolist():
        label = index.get(one, one if type(one) is int else index.get(class_name(str(one)), -1))
        if not 0 <= label < len(index):
            near = did_you_mean(one, class_names) if isinstance(one, str) else ""
            raise UserError(f"{origin}: {one!r} is not a class{near} (classes: {listing(list(class_names))})")
        found.append(label)
    return np.array(found, dtype=np.int64)
