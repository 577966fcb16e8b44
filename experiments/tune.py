"""Every method's main settings, searched for on validation records with the same budget, and written as a preset.

    python experiments/tune.py                      all methods; about an hour on two cores
    python experiments/tune.py --methods fedavg     only some; what is known of the others stays

Makes experiments/results/tune.json and tune.md (all trials) and the preset digits-homogeneous (the best of
each method) again. Needs the extra `tune` (Optuna). Each method gets TRIALS candidates, its defaults first, on seeds
that are reported nowhere else. A method is judged by the negative log-likelihood on a client's own classes plus that on
all classes, each of the method's best scored model (personal, global or fine-tuned); methods that cannot know a class
the client does not hold, by their own classes only. Test records are never touched. A stopped search goes on where it
stopped.
"""

import argparse
import hashlib
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console

from fedbnn import load_config, run
from fedbnn.cli.progress import TerminalProgress

HERE = Path(__file__).resolve().parent
PRESET = HERE.parent / "src" / "fedbnn" / "presets" / "digits-homogeneous.toml"
TRIALS = 10
SEEDS = (10, 11)
MODEL = "cnn2"
BASE = [
    f'models=[{{name="{MODEL}"}}]',
    "data.validation=147",
    "evaluation.split=validation",
    "evaluation.every=100",
    "checkpoint_every=100",
]
OWN_CLASSES_ONLY = ("local", "local_bnn", "pfedgp")
Settings = dict[str, Any]


class Knobs:
    """A trial's choices, rounded to two digits so that the preset says exactly what was tried."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def log(self, name: str, low: float, high: float) -> float:
        return float(f"{self.trial.suggest_float(name, low, high, log=True):.2g}")

    def linear(self, name: str, low: float, high: float) -> float:
        return float(f"{self.trial.suggest_float(name, low, high):.2g}")

    def choice(self, name: str, *options: Any) -> Any:
        return self.trial.suggest_categorical(name, options)


def _pfedme(k: Knobs) -> Settings:
    strength = k.log("strength", 1, 50)
    # The product of the two rates is what must stay below 1, so it is what is searched.
    return {
        "strength": strength,
        "rate": float(f"{k.linear('product', 0.05, 0.95) / strength:.2g}"),
        "personal_rate": k.log("personal_rate", 0.005, 0.2),
        "inner_steps": k.choice("inner_steps", 5, 10),
    }


SPACES: dict[str, Callable[[Knobs], Settings]] = {
    "fedbnn": lambda k: {
        "learning_rate": k.log("learning_rate", 5e-4, 5e-3),
        "kl_weight": k.log("kl_weight", 1e-3, 0.1),
        "gamma": k.linear("gamma", 0.5, 1.0),
        "consensus": k.choice("consensus", "mean_logits", "sharpened", "corrected"),
    },
    "fedmd": lambda k: {
        "learning_rate": k.log("learning_rate", 1e-4, 2e-3),
        "digest_learning_rate": k.log("digest_learning_rate", 5e-4, 5e-3),
        "gamma": k.linear("gamma", 0.5, 1.0),
        "consensus": k.choice("consensus", "mean_logits", "sharpened", "corrected"),
    },
    "feddf": lambda k: {
        "learning_rate": k.log("learning_rate", 1e-4, 5e-3),
        "distill_learning_rate": k.log("distill_learning_rate", 3e-4, 1e-2),
        "distill_steps": k.choice("distill_steps", 50, 100, 200),
    },
    "fedavg": lambda k: {
        "learning_rate": k.log("learning_rate", 1e-4, 1e-2),
        "weight_decay": k.log("weight_decay", 1e-5, 1e-2),
    },
    "fedprox": lambda k: {
        "learning_rate": k.log("learning_rate", 1e-4, 1e-2),
        "mu": k.log("mu", 1e-3, 1.0),
    },
    "pfedme": _pfedme,
    "pfedbayes": lambda k: {
        "learning_rate": k.log("learning_rate", 1e-3, 2e-2),
        "zeta": k.log("zeta", 1e-3, 10),
        "initial_rho": k.linear("initial_rho", -6.0, -3.0),
    },
    "pfedgp": lambda k: {
        "learning_rate": k.log("learning_rate", 0.01, 1.0),
        "inner_steps": k.choice("inner_steps", 1, 3, 10),
        "lengthscale": k.log("lengthscale", 0.3, 2.0),
    },
    "fola": lambda k: {
        "learning_rate": k.log("learning_rate", 1e-4, 1e-2),
        "prior_weight": k.log("prior_weight", 0.1, 1e4),
    },
    "dp_fedavg": lambda k: {
        "private_rate": k.log("private_rate", 0.01, 1.0),
        "clip": k.log("clip", 0.1, 3.0),
        "steps": k.choice("steps", 1, 2, 5),
        "sampling_rate": k.choice("sampling_rate", 0.25, 0.5, 1.0),
        "learning_rate": k.log("learning_rate", 3e-4, 5e-3),
    },
    "local_bnn": lambda k: {
        "learning_rate": k.log("learning_rate", 5e-4, 5e-3),
        "kl_weight": k.log("kl_weight", 1e-3, 0.1),
    },
    "local": lambda k: {
        "learning_rate": k.log("learning_rate", 1e-4, 5e-3),
        "weight_decay": k.log("weight_decay", 1e-5, 1e-2),
    },
}
# Not searched: what makes a private run repeatable, so that a stopped search goes on with the same candidates.
FIXED: dict[str, Settings] = {"dp_fedavg": {"noise": "seed"}}


def criterion(method: str, result: dict[str, Any]) -> float:
    """The lower the better."""
    own, everything = (min(v[name] for v in result["variants"].values()) for name in ("nll", "all_class_nll"))
    return float(own) + (0.0 if method in OWN_CLASSES_ONLY else float(everything))


def evaluate(method: str, chosen: Settings, observer: TerminalProgress) -> dict[str, Any]:
    """One candidate on all seeds."""
    settings = [
        f"methods.{method}.{name}={json.dumps(value)}" for name, value in (chosen | FIXED.get(method, {})).items()
    ]
    name = hashlib.sha256("\n".join(sorted([*settings, *BASE])).encode()).hexdigest()[:12]
    results = []
    for seed in SEEDS:
        config = load_config(overrides=[*BASE, *settings, f"method={method}", f"seed={seed}"])
        out = HERE.parent / "runs" / "tune" / f"{method}-{name}-seed{seed}"
        results.append(run(config, out, resume=True, observer=observer))
    scores = ("own_class_accuracy", "all_class_accuracy", "nll", "all_class_nll", "ece")
    variants = {
        variant: {score: statistics.mean(r["variants"][variant][score] for r in results) for score in scores}
        for variant in results[0]["variants"]
    }
    return {
        "method": method,
        "settings": chosen,
        "variants": variants,
        "criterion": statistics.mean(criterion(method, result) for result in results),
        "seconds": statistics.mean(result["seconds"] for result in results),
    }


def search(method: str, trials: int, observer: TerminalProgress) -> list[dict[str, Any]]:
    """All candidates of a method, in the order they were tried; the first is its defaults."""
    # Apart from the search, because a default (no weight decay) may lie outside of the range that is searched.
    rows = [evaluate(method, {}, observer)]

    def objective(trial: optuna.Trial) -> float:
        rows.append(evaluate(method, SPACES[method](Knobs(trial)), observer))
        return float(rows[-1]["criterion"])

    # The first candidates are drawn at random, the others from where it went well (tree-structured Parzen estimator).
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=trials // 2 - 1)
    optuna.create_study(sampler=sampler).optimize(objective, n_trials=trials - 1)
    return rows


def markdown(table: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| method | settings | scored | own-class | all-class | NLL | all-class NLL | ECE | criterion |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in (name for name in SPACES if name in table):
        for row in sorted(table[method], key=lambda row: float(row["criterion"])):
            settings = ", ".join(f"{name}={value}" for name, value in row["settings"].items()) or "defaults"
            for variant, s in row["variants"].items():
                lines.append(
                    f"| {method} | {settings} | {variant.replace('_', '-')} | {100 * s['own_class_accuracy']:.1f} | "
                    f"{100 * s['all_class_accuracy']:.1f} | {s['nll']:.3f} | {s['all_class_nll']:.3f} | "
                    f"{s['ece']:.3f} | {row['criterion']:.3f} |"
                )
    seeds = " and ".join(map(str, SEEDS))
    lines += [
        "",
        f"Means over seeds {seeds}, on validation records; the best of each method first. Made by",
        "`python experiments/tune.py`.",
    ]
    return "\n".join(lines) + "\n"


def preset(table: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "# handwritten digits, 20 clients with one architecture, every method with the settings found for it",
        "# Made by experiments/tune.py on validation records; all it tried is in experiments/results/tune.md.",
        "",
        "[[models]]",
        f'name = "{MODEL}"',
    ]
    for method in (name for name in SPACES if name in table):
        best = min(table[method], key=lambda row: float(row["criterion"]))
        lines += ["", f"[methods.{method}]", *(f"{name} = {json.dumps(v)}" for name, v in best["settings"].items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", default=",".join(SPACES), help="separated by commas; default: all")
    parser.add_argument("--trials", type=int, default=TRIALS, help="candidates for each method (default %(default)s)")
    arguments = parser.parse_args()
    names = arguments.methods.split(",")
    for name in names:
        if name not in SPACES:
            parser.error(f"--methods: '{name}' is unknown (there are {', '.join(SPACES)})")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out = HERE / "results"
    file = out / "tune.json"
    table: dict[str, list[dict[str, Any]]] = json.loads(file.read_text()) if file.exists() else {}
    with TerminalProgress(Console(stderr=True)) as progress:
        for name in names:
            table[name] = search(name, arguments.trials, progress)
            file.write_text(json.dumps({name: table[name] for name in SPACES if name in table}, indent=2) + "\n")
            (out / "tune.md").write_text(markdown(table))
            PRESET.write_text(preset(table))
    print(markdown(table))


if __name__ == "__main__":
    main()
