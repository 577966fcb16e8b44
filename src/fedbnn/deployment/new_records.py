"""New records for a run folder's models, from files and from tables in memory; columns are found by their names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.data import DataSettings
from fedbnn.data.csv_source import Table
from fedbnn.data.dataset import Floats
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.stored import inputs_of
from fedbnn.deployment.alignment import ARRAY
from fedbnn.federation.inputs import Inputs


def columns_of(data: DataSettings) -> list[str]:
    """The features of a .csv file, in the order in which models see them; none where the data are no such file."""
    if data.source != "csv":
        return []
    header = Table.read(Path(data.path), f"data.path = {data.path!r}").header
    return [name for name in header if name not in (data.target, data.client_column)]


def ordered(x: Inputs, columns: Sequence[str]) -> Inputs:
    """A pandas table's columns by name, where names are known; anything else as it is."""
    if not hasattr(x, "columns") or not columns:
        return x
    if missing := [name for name in columns if name not in x.columns]:
        raise UserError(f"x has no column {listing(missing)}; its columns are: {listing(map(str, x.columns))}")
    return x[list(columns)]


def labels_of(given: Inputs, class_names: Sequence[str]) -> Tensor:
    """Labels by the names or the numbers of their classes."""
    index: dict[Any, int] = {name: i for i, name in enumerate(class_names)}
    labels = [index.get(one, one) for one in np.asarray(given).ravel().tolist()]
    wrong = [one for one in labels if type(one) is not int or not 0 <= one < len(index)]
    if wrong:
        raise UserError(f"calibration: {wrong[0]!r} is not a class (classes: {listing(class_names)})")
    return torch.tensor(labels, dtype=torch.int64)


def read_inputs(source: Path, columns: Sequence[str]) -> Floats:
    """The records of an .npz or .csv file as loaded, before they are scaled."""
    origin = f"--input {source}"
    match source.suffix:
        case ".npz":
            file = NpzFile(source, origin)
            name = file.files[0] if len(file.files) == 1 else ARRAY
            return inputs_of(origin, name, file.array(name))
        case ".csv":
            table = Table.read(source, origin)
            return table.numbers([table.column("feature", name) for name in columns or table.header])
    raise UserError(f"{origin}: its name must end in .npz or .csv")
