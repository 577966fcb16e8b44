"""What a made-up alignment set costs where hospitals have no public records: accuracy against its epsilon.

    FEDBNN_DATA=FOLDER python experiments/copula.py    makes results/copula.json and results/copula.md again

The four hospitals of `heart` as they are, gaps included, with every column declared. FedBNN aligns on 100 of their own
records, which have to be public then, or on 100 that a Gaussian copula makes up under record-level differential privacy
(`fedbnn data alignment`), from all records that clients train on. A hospital alone needs none. On held-out records,
own-class scores, means over hospitals; noise is the operating system's, so the figures do not come out the same again.
"""

import csv
import os
import statistics
import sys
import tempfile
from pathlib import Path

from fedbnn import Config, load_config, run
from fedbnn.base.files import write_atomically, write_json
from fedbnn.data.heart_source import COLUMNS, HOSPITALS
from fedbnn.privacy import Budget
from fedbnn.runs.made_up import made_up, written

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2, 3, 4)
EPSILONS = (10.0, 3.0, 1.0)
POINTS = 100
SCORES = {"own_class_accuracy": ("accuracy, %", 100, 1), "nll": ("NLL", 1, 3), "ece": ("ECE", 1, 3)}
DECLARED = """
[data.columns]
age = { kind = "number", unit = "years", low = 0, high = 110 }
sex = { kind = "boolean" }
cp = { kind = "category", values = ["1", "2", "3", "4"] }
trestbps = { kind = "number", unit = "mm Hg", low = 60, high = 220, optional = true }
chol = { kind = "number", unit = "mg/dl", low = 0, high = 650, optional = true }
fbs = { kind = "boolean", optional = true }
restecg = { kind = "category", values = ["0", "1", "2"] }
thalach = { kind = "number", low = 40, high = 220, optional = true }
exang = { kind = "boolean", optional = true }
oldpeak = { kind = "number", low = -4, high = 7, optional = true }
slope = { kind = "category", values = ["1", "2", "3"] }
ca = { kind = "category", values = ["0", "1", "2", "3"] }
thal = { kind = "category", values = ["3", "6", "7"] }
"""


def hospitals(source: Path, folder: Path) -> None:
    """A CSV file for each hospital, with a header; numbers as whole ones where they are."""
    for name, file in HOSPITALS.items():
        with (source / file).open(newline="") as stream, (folder / f"{name}.csv").open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow([*COLUMNS[:-1], "outcome"])
            for row in csv.reader(stream):
                cells = [cell if cell == "?" else f"{float(cell):g}" for cell in row]
                writer.writerow([*cells[:-1], "disease" if float(row[-1]) > 0 else "none"])


def config(folder: Path, seed: int, *changes: str) -> Config:
    file = folder / "heart.toml"
    text = (HERE / "cpu" / "heart.toml").read_text(encoding="utf-8")
    file.write_text(text.replace('source = "heart"', 'source = "csv"\ntarget = "outcome"') + DECLARED, encoding="utf-8")
    return load_config(file, [f"seed={seed}", f'data.path="{folder / "hospitals"}"', *changes])


def measure(source: Path, folder: Path, seed: int) -> dict[str, dict[str, float]]:
    (folder / "hospitals").mkdir()
    hospitals(source, folder / "hospitals")
    ways = {
        "alone": config(folder, seed, "method=local_bnn", f"data.alignment={POINTS}"),
        "own records": config(folder, seed, f"data.alignment={POINTS}"),
    }
    for epsilon in EPSILONS:
        settings = config(folder, seed, f"data.alignment={POINTS}")
        place = folder / f"public-{epsilon:g}.csv"
        copula, codes = made_up(settings, Budget(epsilon, 1e-5), folder / f"ledgers-{epsilon:g}")
        place.write_text(written(codes, copula.sample(POINTS, seed), settings.data.layout), encoding="utf-8")
        ways[f"copula, ε = {epsilon:g}"] = config(
            folder, seed, f"data.alignment={POINTS}", f'data.alignment_source="{place}"'
        )
    found = {}
    for number, (name, way) in enumerate(ways.items()):
        result = run(way, folder / f"run-{number}")
        found[name] = {score: float(result[score]) for score in SCORES}
    return found


def table(runs: dict[str, dict[str, dict[str, float]]]) -> str:
    heads = [title for title, _, _ in SCORES.values()]
    lines = [
        "# What a made-up alignment set costs",
        "",
        f"Four hospitals, {POINTS} alignment points; seeds {', '.join(runs)}, mean ± standard deviation. Made by",
        "`python experiments/copula.py`, which says how.",
        "",
        f"| alignment set | {' | '.join(heads)} |",
        f"|{'---|' * (len(heads) + 1)}",
    ]
    for name in next(iter(runs.values())):
        cells = []
        for score, (_, factor, digits) in SCORES.items():
            values = [factor * run[name][score] for run in runs.values()]
            cells.append(f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}")
        lines.append(f"| {'none: a hospital alone' if name == 'alone' else name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    source = Path(os.environ.get("FEDBNN_DATA", ".")) / "heart"
    if missing := [file for file in HOSPITALS.values() if not (source / file).is_file()]:
        sys.exit(f"{source}: there is no {missing[0]}; set FEDBNN_DATA to a folder that holds heart/ with UCI's files")
    runs = {}
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            runs[str(seed)] = measure(source, Path(folder), seed)
        print(seed, runs[str(seed)], flush=True)
    write_json(HERE / "results" / "copula.json", runs)
    write_atomically(HERE / "results" / "copula.md", table(runs))
    print(table(runs))


if __name__ == "__main__":
    main()
