"""Four hospitals with a messy table each: text, gaps, decimal commas, umlauts, two encodings, columns in two orders."""

import csv
from pathlib import Path

import numpy as np

from fedbnn.data import DataSettings
from fedbnn.data.tables.columns import ColumnSettings

NAMES = ("Genève", "Graz", "Köln", "Zürich")
HEADER = ("patient_id", "age", "sex", "smoker", "crp", "admitted", "outcome")
DECLARED = {
    "age": ColumnSettings("number", unit="years", low=0, high=110),
    "sex": ColumnSettings("category", values=("f", "m")),
    "smoker": ColumnSettings("boolean"),
    "admitted": ColumnSettings("date"),
    "patient_id": ColumnSettings("id"),
}


def records(seed: int = 0, each: int = 30) -> dict[str, list[dict[str, str]]]:
    """By hospital; outcomes depend on age, smoking and crp."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[dict[str, str]]] = {}
    for name in NAMES:
        found[name] = []
        for row in range(each):
            age, crp, smoker = rng.normal(60, 12), rng.gamma(2, 5), bool(rng.random() < 0.5)
            ill = age + 10 * smoker + crp + rng.normal(0, 5) > 75
            found[name].append(
                {
                    "patient_id": f"{name}-{row}",
                    "age": f"{age:.1f}".replace(".", ","),
                    "sex": str(rng.choice(["f", "m", "x"], p=[0.48, 0.48, 0.04])),
                    "smoker": "ja" if smoker else "nein",
                    "crp": "NA" if rng.random() < 0.2 else f"{crp:.2f}".replace(".", ","),
                    "admitted": f"{rng.integers(1, 29):02d}.{rng.integers(1, 13):02d}.2023",
                    "outcome": "über Norm" if ill else "gesund",
                }
            )
    return found


def write(folder: Path, found: dict[str, list[dict[str, str]]], ending: str = ".csv") -> None:
    """One file a hospital."""
    folder.mkdir(exist_ok=True)
    for number, (name, rows) in enumerate(found.items()):
        encoding, header = ("latin-1", HEADER[::-1]) if number % 2 else ("utf-8", HEADER)
        with (folder / f"{name}{ending}").open("w", newline="", encoding=encoding) as stream:
            writer = csv.DictWriter(stream, header, delimiter=";")
            writer.writeheader()
            writer.writerows(rows)


def settings(folder: Path, **changes: object) -> DataSettings:
    given = {"source": "csv", "path": str(folder), "target": "outcome", "decimal": ",", "alignment": 30}
    return DataSettings(**(given | {"columns": DECLARED} | changes))  # type: ignore[arg-type]
