"""How the defaults were chosen: a small grid for each method on validation records of seeds that are not reported.

    python experiments/tune_digits.py       makes results/tune_digits.json and results/tune_digits.md again

Both federated methods get the same number of candidates here (a search by hand came before, see the README), and all
get the same seeds and budget. The criterion is the
negative log-likelihood on a client's own classes plus that on all classes: a personal model should be right and honest
about what it holds and about what it has only heard of. Methods that stay alone hear of nothing and are chosen by their
own classes only. Test records are never touched. A stopped run goes on where it stopped.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbnn import load_config, run
from fedbnn.cli.progress import TerminalProgress

HERE = Path(__file__).resolve().parent
SEEDS = (10, 11, 12)
BASE = ["data.validation=147", "evaluation.split=validation", "evaluation.every=100"]
ALONE = ("local_bnn", "local")
# What the candidates do not name is pinned here, so that the grid means the same whatever the defaults become.
PINNED: dict[str, list[str]] = {
    "fedbnn": ["learning_rate=0.001", "prior_learning_rate=0.001", "prior_sd_floor=0.1", "initial_rho=-6.0"],
    "fedmd": ["digest_learning_rate=0.001"],
    "local_bnn": ["initial_rho=-6.0"],
    "local": [],
}
GRID: dict[str, list[list[str]]] = {
    "fedbnn": [
        ["consensus=mean_logits", "gamma=0.7", "kl_weight=0.01"],
        ["consensus=mean_logits", "gamma=0.7", "kl_weight=0.03"],
        ["consensus=sharpened", "sharpen=2", "gamma=0.9", "kl_weight=0.03"],
        ["consensus=sharpened", "sharpen=2", "gamma=0.9", "kl_weight=0.1"],
        ["consensus=sharpened", "sharpen=3", "gamma=0.9", "kl_weight=0.03"],
        ["consensus=corrected", "sharpen=2", "gamma=0.9", "kl_weight=0.03"],
        ["consensus=mean_logits", "gamma=0.7", "kl_weight=0.01", "prior_learning_rate=0.002"],
        ["consensus=mean_logits", "gamma=0.7", "kl_weight=0.01", "prior_learning_rate=0.002", "learning_rate=0.002"],
        ["consensus=mean_logits", "gamma=0.7", "kl_weight=0.03", "prior_learning_rate=0.002", "learning_rate=0.002"],
    ],
    "fedmd": [
        ["consensus=mean_logits", "gamma=0.7", "learning_rate=0.001"],
        ["consensus=mean_logits", "gamma=0.7", "learning_rate=0.0005"],
        ["consensus=sharpened", "sharpen=2", "gamma=0.9", "learning_rate=0.001"],
        ["consensus=sharpened", "sharpen=3", "gamma=0.9", "learning_rate=0.001"],
        ["consensus=sharpened", "sharpen=3", "gamma=0.9", "learning_rate=0.0005"],
        ["consensus=corrected", "sharpen=2", "gamma=0.9", "learning_rate=0.001"],
        ["consensus=mean_logits", "gamma=0.7", "learning_rate=0.001", "digest_learning_rate=0.002"],
        ["consensus=mean_logits", "gamma=0.7", "learning_rate=0.002", "digest_learning_rate=0.002"],
        ["consensus=sharpened", "sharpen=3", "gamma=0.9", "learning_rate=0.0005", "digest_learning_rate=0.002"],
    ],
    "local_bnn": [[f"kl_weight={kl}", f"learning_rate={rate}"] for kl in (0.01, 0.1) for rate in (0.001, 0.002)],
    "local": [[f"learning_rate={rate}"] for rate in (0.0003, 0.0005, 0.001, 0.002)],
}


def score(method: str, number: int, changes: list[str], observer: TerminalProgress) -> dict[str, Any]:
    """One candidate on all seeds."""
    results = []
    for seed in SEEDS:
        prefixed = [f"methods.{method}.{change}" for change in (*PINNED[method], *changes)]
        config = load_config(overrides=[*BASE, f"method={method}", f"seed={seed}", *prefixed])
        out = HERE.parent / "runs" / "tune-digits" / f"{method}-{number}-seed{seed}"
        results.append(run(config, out, resume=True, observer=observer))
    names = ("own_class_accuracy", "all_class_accuracy", "nll", "all_class_nll", "ece")
    means = {name: statistics.mean(result[name] for result in results) for name in names}
    criterion = means["nll"] + (0 if method in ALONE else means["all_class_nll"])
    return {"method": method, "settings": changes, **means, "criterion": criterion}


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| method | settings | own-class accuracy | all-class accuracy | NLL | all-class NLL | ECE | criterion |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in GRID:
        own = sorted((row for row in rows if row["method"] == method), key=lambda row: row["criterion"])
        lines += [
            f"| {method} | {', '.join(row['settings'])} | {100 * row['own_class_accuracy']:.1f} | "
            f"{100 * row['all_class_accuracy']:.1f} | {row['nll']:.3f} | {row['all_class_nll']:.3f} | "
            f"{row['ece']:.3f} | {row['criterion']:.3f} |"
            for row in own
        ]
    seeds = ", ".join(map(str, SEEDS))
    return (
        "\n".join([*lines, "", f"Means over seeds {seeds}, on validation records; the best of each method first."])
        + "\n"
    )


def main() -> None:
    rows = []
    out = HERE / "results"
    out.mkdir(exist_ok=True)
    with TerminalProgress(Console(stderr=True)) as progress:
        for method, candidates in GRID.items():
            for number, changes in enumerate(candidates):
                rows.append(score(method, number, changes, progress))
                (out / "tune_digits.json").write_text(json.dumps(rows, indent=2) + "\n")
                (out / "tune_digits.md").write_text(markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
