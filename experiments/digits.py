"""FedBNN beside FedMD, Local-BNN and Local on the demonstration federation, three seeds, on test records.

    python experiments/digits.py            makes results/digits.json and results/digits.md again

The settings are the defaults of the package (`fedbnn config`), which were chosen on validation records
(tune_digits.py, and the README on what came before it). A run that was stopped goes on where it stopped.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbnn import Config, compare
from fedbnn.progress import TerminalProgress

HERE = Path(__file__).resolve().parent
METHODS = ("fedbnn", "fedmd", "local_bnn", "local")
SEEDS = (0, 1, 2)
SCORES = {
    "own_class_accuracy": "own-class accuracy",
    "all_class_accuracy": "all-class accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "mce": "MCE",
}


def summary(results: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation over seeds of every score, by method."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for method in METHODS:
        rows = [result for result in results if result["method"] == method]
        table[method] = {
            score: {
                "mean": statistics.mean(row[score] for row in rows),
                "sd": statistics.stdev(row[score] for row in rows),
            }
            for score in SCORES
        }
    return table


def markdown(table: dict[str, dict[str, dict[str, float]]]) -> str:
    def cell(score: str, value: dict[str, float]) -> str:
        if "accuracy" in score:
            return f"{100 * value['mean']:.1f} ± {100 * value['sd']:.1f}"
        return f"{value['mean']:.3f} ± {value['sd']:.3f}"

    lines = [
        f"| method | {' | '.join(SCORES.values())} |",
        f"|---|{'---|' * len(SCORES)}",
        *(f"| {m} | {' | '.join(cell(s, v) for s, v in scores.items())} |" for m, scores in table.items()),
        "",
        f"Mean ± standard deviation over seeds {', '.join(map(str, SEEDS))}, on test records. Made by",
        "`python experiments/digits.py`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    with TerminalProgress(Console(stderr=True)) as progress:
        results = compare(
            Config(), METHODS, HERE.parent / "runs" / "experiment-digits", seeds=SEEDS, resume=True, observer=progress
        )
    table = summary(results)
    out = HERE / "results"
    out.mkdir(exist_ok=True)
    (out / "digits.json").write_text(json.dumps(table, indent=2) + "\n")
    (out / "digits.md").write_text(markdown(table))
    print(markdown(table))


if __name__ == "__main__":
    main()
