"""The heart-disease records of four hospitals (Janosi, Steinbrunn, Pfisterer, Detrano 1988, UCI), one client each.

Missing values ('?') are handled as in FLamby (Ogier du Terrail et al. 2022): the columns slope, ca and thal, which
three hospitals hardly recorded, are dropped, then every record that still lacks a value. The label is whether any
disease is there (num > 0). Chest pain (cp) and the electrocardiogram (restecg) are categories: they become one
indicator for each value but the first.
"""

import math
from pathlib import Path

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Names
from fedbnn.data.holdout import fixed_split
from fedbnn.data.stored import Array, Half, Stored

HOSPITALS = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "Long Beach VA": "processed.va.data",
}
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)  # fmt: skip
DROPPED = ("slope", "ca", "thal")
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}
KEPT = tuple(name for name in COLUMNS if name not in DROPPED)
TEST_SHARE = 0.34
LARGEST = 1e38  # of what single precision holds

Record = dict[str, float]


class HeartFiles(Stored):
    """The four files in a folder; both halves come from a split that is fixed.

    Of each hospital ceil(0.34 n) records are held out for testing, the same share of both classes: the sizes of
    FLamby's split (199/104, 172/89, 30/16 and 85/45). It depends on no setting and no seed.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        self.origin, self.path = origin, folder
        self.halves = ("train", "test") if all((folder / file).is_file() for file in HOSPITALS.values()) else ()

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        return {half: self._half(half)[:2] for half in halves}

    def names(self) -> tuple[str, ...]:
        return ("no disease", "disease")

    def group(self, half: Half) -> Names:
        return self._half(half)[2]

    def _half(self, half: Half) -> tuple[Array, Array, Names]:
        """Inputs, labels and hospitals of one half."""
        parts = []
        for hospital, file in HOSPITALS.items():
            records = self._records(self.path / file)
            x = np.array([_features(record) for record in records], dtype=np.float32)
            y = np.array([record["num"] > 0 for record in records], dtype=np.int64)
            train, test = fixed_split(y, math.ceil(TEST_SHARE * len(y)))
            rows = train if half == "train" else test
            parts.append((x[rows], y[rows], np.full(len(rows), hospital)))
        x, y, hospitals = (np.concatenate(column) for column in zip(*parts, strict=True))
        return x, y, hospitals

    def _records(self, path: Path) -> list[Record]:
        """The complete records of one hospital."""
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.origin}: {path} cannot be read: {error}") from None
        records = []
        for number, line in enumerate(lines, 1):
            cells = [cell.strip() for cell in line.split(",")]
            if cells == [""]:
                continue
            if len(cells) != len(COLUMNS):
                raise UserError(f"{self.origin}: {path}, line {number}: {len(cells)} cells; {len(COLUMNS)} are needed")
            kept = {name: cell for name, cell in zip(COLUMNS, cells, strict=True) if name in KEPT}
            if "?" not in kept.values():
                records.append(self._record(f"{path}, line {number}", kept))
        if not records:
            raise UserError(f"{self.origin}: {path} holds no complete record")
        return records

    def _record(self, where: str, cells: dict[str, str]) -> Record:
        try:
            record = {name: float(cell) for name, cell in cells.items()}
        except ValueError as error:
            raise UserError(f"{self.origin}: {where}: {error}") from None
        for name, value in record.items():
            if not abs(value) < LARGEST:  # nan neither
                raise UserError(f"{self.origin}: {where}: {name} = {cells[name]}; a number below {LARGEST:g} is needed")
        for name, values in CATEGORIES.items():
            if record[name] not in values:
                raise UserError(f"{self.origin}: {where}: {name} = {cells[name]}; it must be one of {values}")
        return record


def _features(record: Record) -> list[float]:
    numbers = [value for name, value in record.items() if name not in CATEGORIES and name != "num"]
    indicators = [float(record[name] == value) for name, values in CATEGORIES.items() for value in values[1:]]
    return numbers + indicators
