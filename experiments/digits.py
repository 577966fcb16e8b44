"""Every method on the demonstration federation, three seeds, on test records.

    python experiments/digits.py heterogeneous    three architectures mixed, the methods that allow it
    python experiments/digits.py homogeneous      one architecture, all methods

makes results/digits_*.json and results/digits_*.md again. The first uses the package's defaults, which were chosen by
tune_digits.py (and the README on what came before it), the second the preset that tune.py made; both searched on
validation records. A run that was stopped goes on where it stopped.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbnn import Config, compare, load_config
from fedbnn.cli.progress import TerminalProgress
from fedbnn.methods import METHODS

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
ANY_ARCHITECTURE = ("fedbnn", "fedmd", "feddf", "local_bnn", "local")
SCORES = {
    "own_class_accuracy": "own-class accuracy",
    "all_class_accuracy": "all-class accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "mce": "MCE",
}
Spread = dict[str, float]


def settings(kind: str) -> tuple[Config, tuple[str, ...]]:
    """The configuration and the methods."""
    if kind == "heterogeneous":
        return Config(), ANY_ARCHITECTURE
    return load_config(Path("digits-homogeneous")), tuple(METHODS)


def spread(values: list[float]) -> Spread:
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values)}


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for every scored model of every method: mean and standard deviation over seeds."""
    rows = []
    for method in dict.fromkeys(result["method"] for result in results):
        runs = [result for result in results if result["method"] == method]
        for variant in runs[0]["variants"]:
            scores = {name: spread([run["variants"][variant][name] for run in runs]) for name in SCORES}
            costs = {
                name: statistics.mean(run[name] for run in runs) for name in ("bytes_up_per_client_round", "seconds")
            }
            privacy = {name: runs[0].get(name) for name in ("epsilon_spent", "delta", "privacy_unit")}
            rows.append({"method": method, "scored": variant, **scores, **costs, **privacy})
    return rows


def markdown(rows: list[dict[str, Any]], kind: str) -> str:
    def cell(score: str, value: Spread) -> str:
        if "accuracy" in score:
            return f"{100 * value['mean']:.1f} ± {100 * value['sd']:.1f}"
        return f"{value['mean']:.3f} ± {value['sd']:.3f}"

    def epsilon(row: dict[str, Any]) -> str:
        return "none" if row["epsilon_spent"] is None else f"{row['epsilon_spent']:.2f}"

    lines = [
        f"| method | scored | {' | '.join(SCORES.values())} | kB sent | ε |",
        f"|---|---|{'---|' * len(SCORES)}---|---|",
        *(
            f"| {row['method']} | {row['scored'].replace('_', '-')} | "
            f"{' | '.join(cell(score, row[score]) for score in SCORES)} | "
            f"{row['bytes_up_per_client_round'] / 1000:.1f} | {epsilon(row)} |"
            for row in rows
        ),
        "",
        f"Mean ± standard deviation over seeds {', '.join(map(str, SEEDS))}, on test records; kB sent by a client in a",
        f"round; ε at δ = 1e-5 for one record. Made by `python experiments/digits.py {kind}`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=["heterogeneous", "homogeneous"])
    kind = parser.parse_args().kind
    config, methods = settings(kind)
    with TerminalProgress(Console(stderr=True)) as progress:
        out = HERE.parent / "runs" / f"experiment-digits-{kind}"
        rows = summary(compare(config, methods, out, seeds=SEEDS, resume=True, observer=progress))
    results = HERE / "results"
    (results / f"digits_{kind}.json").write_text(json.dumps(rows, indent=2) + "\n")
    (results / f"digits_{kind}.md").write_text(markdown(rows, kind))
    print(markdown(rows, kind))


if __name__ == "__main__":
    main()
