"""What privacy costs: FedBNN under each budget, on MNIST and CIFAR-10, beside those it has to beat. Three seeds.

    python experiments/privacy.py [--only mnist] [--seeds 0]

Needs the data sets mnist and cifar10 (`fedbnn datasets` says where they are looked for). Scored are the first 1000 test
records. Makes results/privacy.json, results/privacy.md and docs/privacy.svg again; a run that was stopped goes on where
it stopped.
The noise of FedBNN's mechanisms comes from the operating system and not from a seed: figures differ a little each time.
Settings (privacy.toml, TUNED and ARMS below) were chosen by hand on validation records of seed 10.
"""

import argparse
import json
import os
import statistics
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy_plot import draw
from rich.console import Console

from fedbnn import WorkerPool, load_config, run
from fedbnn.base.errors import UserError
from fedbnn.cli.progress import TerminalProgress

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / "runs" / "experiment-privacy"
DATASETS = ("mnist", "cifar10")
SEEDS = (0, 1, 2)
EPSILONS = (3.0, 1.0, 8.0, 0.5, 2.0, 5.0)  # in the order of interest: a run that is cut short has the main ones
HARDLY_ANY = 1e6  # stands for infinity: noise far too small to matter
SCORES = ("own_class_accuracy", "all_class_accuracy", "nll", "ece")


@dataclass(frozen=True)
class Arm:
    """A line of the plot: a method with its settings, at one budget after the other or without any."""

    name: str
    settings: tuple[str, ...]
    budget: str = ""  # the field that takes epsilon
    epsilons: tuple[float, ...] = ()

    def runs(self) -> list[tuple[float | None, list[str]]]:
        if not self.budget:
            return [(None, list(self.settings))]
        return [(epsilon, [*self.settings, f"{self.budget}={epsilon}"]) for epsilon in self.epsilons]


TUNED = {
    "mnist": ("methods.local_bnn.kl_weight=0.1",),
    "cifar10": (
        "methods.fedbnn.kl_weight=0.3",
        "methods.fedbnn.prior_steps=400",
    ),
}
DP_FEDAVG = (
    "method=dp_fedavg",
    "rounds=60",
    "evaluation.every=60",
    "training.local_epochs=12",  # of the fine-tuned model only: as many passes as FedBNN makes after its warm-up
    "methods.dp_fedavg.learning_rate=0.002",
    "methods.dp_fedavg.steps=1",
    "methods.dp_fedavg.sampling_rate=1.0",
    "methods.dp_fedavg.private_rate=2.0",
)
ARMS = (
    Arm("fedbnn, dp_teacher", ("privacy.mechanism=dp_teacher",), "privacy.epsilon", (*EPSILONS, HARDLY_ANY)),
    Arm("fedbnn, no privacy", ("methods.fedbnn.consensus=by_class",)),
    Arm("local_bnn", ("method=local_bnn",)),
    Arm("dp_fedavg", DP_FEDAVG, "methods.dp_fedavg.epsilon", (*EPSILONS, HARDLY_ANY)),
    Arm(
        "fedbnn, output_perturbation",
        ("privacy.mechanism=output_perturbation", "privacy.force=true"),
        "privacy.epsilon",
        (3.0, 8.0),
    ),
    Arm("fedbnn, dp_moments", ("privacy.mechanism=dp_moments",), "privacy.epsilon", (3.0,)),
)


@dataclass(frozen=True)
class Job:
    """One run."""

    dataset: str
    arm: Arm
    epsilon: float | None
    settings: list[str]
    seed: int

    @property
    def folder(self) -> Path:
        budget = "" if self.epsilon is None else f"-{self.epsilon:g}"
        return RUNS / self.dataset / f"{self.arm.name.replace(', ', '-').replace(' ', '-')}{budget}-seed{self.seed}"

    def run(self, engine: WorkerPool) -> None:
        """Make it, or go on with it; nothing is done again."""
        changes = [f"data.source={self.dataset}", f"seed={self.seed}", *TUNED[self.dataset], *self.settings]
        config = load_config(HERE / "privacy.toml", changes)
        with TerminalProgress(Console(stderr=True)) as progress:
            run(config, self.folder, resume=True, observer=progress, engine=engine)

    def result(self) -> dict[str, Any] | None:
        """What it said; None if it has not been made."""
        path = self.folder / "result.json"
        if not path.exists():
            return None
        found = json.loads(path.read_text())
        kept = {name: found[name] for name in ("variants", "epsilon_spent", "seconds")}
        return {"dataset": self.dataset, "arm": self.arm.name, "epsilon": self.epsilon, "seed": self.seed, **kept}


def rows(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of every scored model."""
    found: list[dict[str, Any]] = []
    for key in dict.fromkeys((one["dataset"], one["arm"], one["epsilon"]) for one in results):
        runs = [one for one in results if (one["dataset"], one["arm"], one["epsilon"]) == key]
        for variant in runs[0]["variants"]:
            scores = {name: spread([one["variants"][variant][name] for one in runs]) for name in SCORES}
            found.append(
                {
                    "dataset": key[0],
                    "arm": key[1],
                    "epsilon": key[2],
                    "scored": variant,
                    "seeds": [one["seed"] for one in runs],
                    "epsilon_spent": max((one["epsilon_spent"] or 0.0) for one in runs) or None,
                    **scores,
                }
            )
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def cell(score: str, value: dict[str, float], seeds: int) -> str:
    factor, decimals = (100, 1) if "accuracy" in score else (1, 3)
    spread = f" ± {factor * value['sd']:.{decimals}f}" if seeds > 1 else ""
    return f"{factor * value['mean']:.{decimals}f}{spread}"


def markdown(found: list[dict[str, Any]]) -> str:
    lines = []
    for dataset in dict.fromkeys(row["dataset"] for row in found):
        lines += [
            f"### {dataset}",
            "",
            "| | scored | ε spent | own-class accuracy | all-class accuracy | NLL | ECE | seeds |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for arm in (arm.name for arm in ARMS):
            for row in sorted(
                (row for row in found if (row["dataset"], row["arm"]) == (dataset, arm)),
                key=lambda row: (row["scored"], row["epsilon"] or 0.0),
            ):
                cells = [cell(name, row[name], len(row["seeds"])) for name in SCORES]
                spent = "none" if row["epsilon_spent"] is None else f"{row['epsilon_spent']:.2f}"
                if row["epsilon"] == HARDLY_ANY:
                    spent = "∞"
                head = f"| {arm} | {row['scored'].replace('_', '-')} | {spent} | "
                lines.append(head + " | ".join(cells) + f" | {len(row['seeds'])} |")
        lines.append("")
    lines += [
        "Mean ± standard deviation over the first so many of seeds 0, 1 and 2; 20 clients, 5 of 10 classes,",
        "250 records each, δ = 1e-5 for one record; 1000 test records.",
        "Made by `python experiments/privacy.py`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=DATASETS, help="one data set; nothing is written to results")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--finished", action="store_true", help="run nothing, only show what has been run")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="worker processes; default: cores")
    chosen = parser.parse_args()
    names = (chosen.only,) if chosen.only else DATASETS
    jobs = [
        Job(name, arm, epsilon, settings, seed)
        for seed in chosen.seeds
        for name in names
        for arm in ARMS
        for epsilon, settings in arm.runs()
    ]
    if not chosen.finished:
        with closing(WorkerPool(chosen.workers)) as engine:
            for job in jobs:
                job.run(engine)
    results = [result for job in jobs if (result := job.result())]
    found = rows(results)
    print(markdown(found))
    if not chosen.only:
        (HERE / "results" / "privacy.json").write_text(json.dumps(found, indent=2) + "\n")
        (HERE / "results" / "privacy.md").write_text(markdown(found))
        (HERE.parent / "docs" / "privacy.svg").write_text(draw(found))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
