"""Which settings each method gets in `fedbnn reproduce --scale cpu`: a few candidates each, on validation records.

    FEDBNN_DATA=FOLDER python experiments/tune_cpu.py [METHOD ...]

One federation that the tables do not contain (CIFAR-10, small, seed 10), scored on 1000 validation records, by the best
own-class accuracy of a method's models. Writes results/tune_cpu.json and .md; what was tried is not tried again.
Names are rows of cpu/plan.toml, and a candidate is what it changes in that row.
FedBNN's other settings were found by hand on the same federation; docs/results.md says what was taken.
"""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbnn import WorkerPool, run
from fedbnn.base.errors import UserError
from fedbnn.cli.progress import TerminalProgress
from fedbnn.reproduce.cells import Cell, cell
from fedbnn.reproduce.plan import Column, Plan, load
from fedbnn.runs.config import toml_value

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / "runs" / "tune-cpu"
SEED = 10
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "fedbnn": [
        {"sharpen": 2.0, "focus": 0.9},
        {"sharpen": 3.0, "focus": 0.9},
        {"sharpen": 2.0, "focus": 0.9, "prior_steps": 200},
        {"sharpen": 2.0, "focus": 0.9, "prior_steps": 600},
    ],
    "plain": [
        {"prior_steps": 300, "learning_rate": 0.002},
        {"prior_steps": 300, "learning_rate": 0.001},
        {"prior_steps": 600, "learning_rate": 0.002},
        {"prior_steps": 600, "learning_rate": 0.001},
        {"prior_steps": 600, "learning_rate": 0.001, "kl_weight": 0.1},
    ],
    "local": [{"learning_rate": rate} for rate in (0.0005, 0.001, 0.002, 0.004)],
    "fedavg": [{"learning_rate": rate} for rate in (0.001, 0.002, 0.004, 0.008, 0.016)],
    "fedprox": [
        {"learning_rate": 0.004, "mu": 0.01},
        {"learning_rate": 0.004, "mu": 0.1},
        {"learning_rate": 0.008, "mu": 0.01},
    ],
    "fola": [
        {"learning_rate": 0.004, "prior_weight": 0.1},
        {"learning_rate": 0.004, "prior_weight": 1.0},
        {"learning_rate": 0.004, "prior_weight": 0.01},
        {"learning_rate": 0.008, "prior_weight": 0.1},
    ],
    "pfedgp": [
        {"learning_rate": 0.05, "inner_steps": 5, "lengthscale": 1.0},
        {"learning_rate": 0.1, "inner_steps": 5, "lengthscale": 0.6},
        {"learning_rate": 0.2, "inner_steps": 10, "lengthscale": 0.6},
        {"learning_rate": 0.4, "inner_steps": 10, "lengthscale": 0.6},
        {"learning_rate": 0.2, "inner_steps": 20, "lengthscale": 0.6},
        {"learning_rate": 0.2, "inner_steps": 10, "lengthscale": 0.4},
    ],
    "pfedbayes": [
        {"learning_rate": 0.004, "zeta": 0.0015, "initial_rho": -3.2},
        {"learning_rate": 0.002, "zeta": 0.01, "initial_rho": -4.0},
        {"learning_rate": 0.002, "zeta": 0.01, "initial_rho": -5.0},
        {"learning_rate": 0.002, "zeta": 0.01, "initial_rho": -6.0},
        {"learning_rate": 0.004, "zeta": 0.01, "initial_rho": -4.0},
    ],
    "pfedme": [
        {"strength": 15.0, "rate": 0.005, "personal_rate": 0.09},
        {"strength": 1.3, "rate": 0.64, "personal_rate": 0.16},
        {"strength": 1.3, "rate": 0.64, "personal_rate": 0.08},
    ],
    "local_bnn": [
        {"learning_rate": 0.001, "kl_weight": 0.01},
        {"learning_rate": 0.002, "kl_weight": 0.1},
        {"learning_rate": 0.002, "kl_weight": 0.3},
        {"learning_rate": 0.004, "kl_weight": 0.1},
        {"learning_rate": 0.008, "kl_weight": 0.1},
    ],
    "feddf": [{"learning_rate": rate} for rate in (0.002, 0.004, 0.008)],
    "fedmd": [
        {"learning_rate": 0.001, "digest_steps": 300},
        {"learning_rate": 0.002, "digest_steps": 300},
        {"learning_rate": 0.004, "digest_steps": 300},
        {"learning_rate": 0.002, "digest_steps": 600},
        {"learning_rate": 0.001, "digest_steps": 600},
    ],
    "dp_fedavg": [{"private_rate": rate} for rate in (0.5, 1.0, 2.0, 4.0)],
    "local_features": [{"hidden": [], "learning_rate": rate} for rate in (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.016)]
    + [{"hidden": [128], "learning_rate": rate} for rate in (0.001, 0.004)],
    "fedavg_features": [{"hidden": [], "learning_rate": rate} for rate in (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.016)]
    + [{"hidden": [128], "learning_rate": rate} for rate in (0.001, 0.004)],
    "fedbnn_features": [
        {"hidden": [], "kl_weight": 0.03},
        {"hidden": [128], "kl_weight": 0.03},
        {"hidden": [128], "kl_weight": 0.1},
        {"hidden": [128], "kl_weight": 0.03, "sharpen": 1.5},
        {"hidden": [128], "kl_weight": 0.03, "focus": 0.7},
        {"hidden": [64], "kl_weight": 0.03},
    ],
    "pfedgp_features": [
        {"hidden": [128], "learning_rate": 0.05, "inner_steps": 5, "lengthscale": 1.0},
        {"hidden": [128], "learning_rate": 0.2, "inner_steps": 10, "lengthscale": 0.6},
    ],
}


def planned(plan: Plan, row: str, candidate: dict[str, Any]) -> Cell:
    """The candidate's run: its row of the plan, with what it changes."""
    method = plan.contents.rows[row].method
    changes = [f"methods.{method}.{name}={toml_value(value)}" for name, value in candidate.items() if name != "hidden"]
    if "hidden" in candidate:
        changes.append(f'models=[{{name="mlp",options={{hidden={candidate["hidden"]}}}}}]')
    column = Column(data="cifar10", size="small")
    return cell(plan, RUNS, column, row, SEED, [*changes, 'evaluation.split="validation"'], "tune_cpu.py")


def tried(plan: Plan, row: str, candidate: dict[str, Any], engine: WorkerPool) -> dict[str, Any]:
    """The scores of one candidate, from its run folder if it has been run."""
    chosen = planned(plan, row, candidate)
    with TerminalProgress(Console(stderr=True)) as progress:
        found = run(chosen.config, chosen.folder, resume=True, observer=progress, engine=engine)
    scores = {
        variant: {name: round(of[name], 4) for name in ("own_class_accuracy", "all_class_accuracy", "nll", "ece")}
        for variant, of in found["variants"].items()
    }
    return {"method": row, "settings": candidate, "scores": scores, "best": best(scores)}


def best(scores: dict[str, dict[str, float]]) -> float:
    return max(of["own_class_accuracy"] for of in scores.values())


def markdown(found: list[dict[str, Any]]) -> str:
    lines = ["| method | settings | model | own classes | all classes | NLL | ECE |", "|---|---|---|---|---|---|---|"]
    for one in found:
        settings = ", ".join(f"{name} {value}" for name, value in one["settings"].items())
        chosen = one["best"] == max(other["best"] for other in found if other["method"] == one["method"])
        for variant, of in one["scores"].items():
            accuracies = f"{of['own_class_accuracy']:.1%} | {of['all_class_accuracy']:.1%}"
            numbers = f"{accuracies} | {of['nll']:.3f} | {of['ece']:.3f}"
            name = f"**{one['method']}**" if chosen else one["method"]
            lines.append(f"| {name} | {settings} | {variant.replace('_', '-')} | {numbers} |")
    return "\n".join(
        [*lines, "", f"CIFAR-10, small, seed {SEED}, 1000 validation records. The best of each method in bold.", ""]
    )


def main() -> None:
    names, plan = sys.argv[1:] or list(CANDIDATES), load(HERE / "cpu")
    if unknown := [name for name in names if name not in CANDIDATES]:
        raise UserError(f"'{unknown[0]}' has no candidates; those with some are {', '.join(CANDIDATES)}")
    results = HERE / "results" / "tune_cpu.json"
    found = [] if not results.exists() else json.loads(results.read_text())
    with closing(WorkerPool(2)) as engine:
        for method in names:
            for candidate in CANDIDATES[method]:
                if any(one["method"] == method and one["settings"] == candidate for one in found):
                    continue
                found.append(tried(plan, method, candidate, engine))
                results.write_text(json.dumps(found, indent=1) + "\n")
                results.with_suffix(".md").write_text(markdown(found))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
