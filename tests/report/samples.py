"""Made-up but plausible run and comparison folders, the same for the same seed."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.federation.metrics import brier, nll, reliability, uncertainty_histogram

CLASSES = 10
ARCHITECTURES = {"mlp": 26_122, "cnn2": 61_706, "cnn3": 128_420, "mymodels.vision:small_resnet": 272_474}
SKILL = {
    "fedbnn": 0.95, "fedmd": 0.93, "feddf": 0.91, "fedavg": 0.84, "fedprox": 0.85, "pfedme": 0.91, "pfedgp": 0.94,
    "pfedbayes": 0.92, "fola": 0.86, "dp_fedavg": 0.78, "local_bnn": 0.92, "local": 0.9,
}  # fmt: skip
TWELVE = list(SKILL)
SCORES = ("own_class_accuracy", "all_class_accuracy", "nll", "brier", "ece", "mce", "all_class_nll")
VARIANTS = {
    "fedavg": ["global", "fine_tuned"],
    "fedprox": ["global", "fine_tuned"],
    "fola": ["global", "fine_tuned", "global_own_prior"],
    "dp_fedavg": ["global", "fine_tuned"],
    "pfedme": ["personal", "global"],
}
PRIVACY = {"dp_fedavg": {"epsilon_spent": 7.94, "delta": 1e-5, "privacy_unit": "client", "mechanism": "Gaussian sums"}}
NEW_KEYS = ("scored", "variants", "epsilon_spent", "delta", "privacy_unit", "mechanism")


def _predictions(skill: float, sharpness: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = 120
    labels = rng.integers(0, CLASSES, n)
    right = rng.random(n) < skill
    peak = np.where(right, labels, rng.integers(0, CLASSES, n))
    logits = rng.normal(0, 1, (n, CLASSES))
    logits[np.arange(n), peak] += rng.gamma(np.where(right, 6, 2.5), sharpness)
    probs = np.exp(logits)
    return probs / probs.sum(axis=1, keepdims=True), labels


def sample_result(method: str = "fedbnn", seed: int = 0, rounds: int = 12, clients: int = 20) -> dict[str, Any]:
    rng = np.random.default_rng([seed, len(method), sum(method.encode())])
    skill, sharpness = SKILL.get(method, 0.9), 0.9 if "b" in method else 1.6
    models = [list(ARCHITECTURES)[i % len(ARCHITECTURES)] for i in range(clients)]
    weights = [ARCHITECTURES[model] for model in models]
    per: dict[str, list[Any]] = {key: [] for key in ("own_class_accuracy", "nll", "brier", "ece", "mce")}
    bins, total, epistemic = None, None, None
    for _ in range(clients):
        probs, labels = _predictions(float(np.clip(skill + rng.normal(0, 0.03), 0, 1)), sharpness, rng)
        mine = reliability(probs, labels)
        right = probs.argmax(axis=1) == labels
        entropy = -(probs * np.log(probs)).sum(axis=1)
        parts = uncertainty_histogram(entropy, right, CLASSES)
        known = uncertainty_histogram(entropy * rng.uniform(0.1, 0.5, len(entropy)), right, CLASSES)
        bins = mine if bins is None else bins + mine
        total = parts if total is None else total + parts
        epistemic = known if epistemic is None else epistemic + known
        per["own_class_accuracy"].append(float(right.mean()))
        per["nll"].append(nll(probs, labels))
        per["brier"].append(brier(probs, labels))
        per["ece"].append(mine.ece)
        per["mce"].append(mine.mce)
    assert bins is not None
    assert total is not None
    assert epistemic is not None
    own = float(np.mean(per["own_class_accuracy"]))
    everything = [float(value * 0.84 + rng.normal(0, 0.02)) for value in per["own_class_accuracy"]]
    carried = 0.0 if method == "local" else 4.0 * 400 * CLASSES if method == "fedbnn" else 4.0 * np.mean(weights)
    at = np.arange(rounds + 1)
    rise = (1 - 0.28 * np.exp(-at / 2.5)) * (1 + rng.normal(0, 0.004, len(at)))
    seconds = {"fedbnn": 31.2, "local": 12.4}.get(method, 22.0) * (1 + 0.05 * float(rng.random()))
    result = {
        "fedbnn_version": "0.1.0",
        "method": method,
        "seed": seed,
        "rounds": rounds,
        "clients": clients,
        "dataset": "digits",
        "class_names": [str(c) for c in range(CLASSES)],
        "alignment_points": 400,
        "split": "test",
        "own_class_accuracy": own,
        "all_class_accuracy": float(np.mean(everything)),
        **{key: float(np.mean(per[key])) for key in ("nll", "brier", "ece", "mce")},
        "all_class_nll": float(np.mean(per["nll"])) * 2.1,
        "bytes_up_per_client_round": float(carried),
        "bytes_down_per_client_round": float(carried),
        "seconds": seconds,
        "per_client": {
            "name": [f"client-{i:02d}" for i in range(clients)],
            "model": models,
            "weights": weights,
            "records": [int(r) for r in rng.integers(60, 120, clients)],
            "classes": [sorted(int(c) for c in rng.choice(CLASSES, 5, replace=False)) for _ in range(clients)],
            "own_class_accuracy": per["own_class_accuracy"],
            "all_class_accuracy": everything,
            **{key: per[key] for key in ("nll", "brier", "ece", "mce")},
            "bytes_up": [float(carried)] * clients,
            "bytes_down": [float(carried)] * clients,
            "seconds": [seconds / clients] * clients,
        },
        "curve": {
            "round": at.tolist(),
            "own_class_accuracy": np.clip(own * rise / rise[-1], 0, 1).tolist(),
            "all_class_accuracy": np.clip(float(np.mean(everything)) * rise**2 / rise[-1] ** 2, 0, 1).tolist(),
            "nll": (float(np.mean(per["nll"])) * (2.2 - 1.2 * rise / rise[-1])).tolist(),
            "ece": (float(np.mean(per["ece"])) * (2.5 - 1.5 * rise / rise[-1])).tolist(),
            "mce": (float(np.mean(per["mce"])) * (1.5 - 0.5 * rise / rise[-1])).tolist(),
            "seconds": (seconds * at / rounds).tolist(),
        },
        "reliability": bins.to_dict(),
        "uncertainty": {"total": total.to_dict(), "epistemic": epistemic.to_dict()},
    }
    variants = VARIANTS.get(method, ["personal"])
    return result | with_variants(result, *variants) | PRIVACY.get(method, {"epsilon_spent": None})


def with_variants(result: dict[str, Any], *names: str) -> dict[str, Any]:
    """The entries of a result whose headline is the first of these variants; the others are better by a known share."""
    headline = {name: result[name] for name in SCORES}
    variants = {
        name: {
            score: value if at == 0 else (1 - (1 - value) * 0.5**at if "accuracy" in score else value * 0.5**at)
            for score, value in headline.items()
        }
        for at, name in enumerate(names)
    }
    return {"scored": names[0], "variants": variants}


def without_new_keys(result: dict[str, Any]) -> dict[str, Any]:
    """As a version wrote it that scored one model and accounted for no privacy."""
    return {key: value for key, value in result.items() if key not in NEW_KEYS}


def sample_config(method: str = "fedbnn", seed: int = 0) -> dict[str, Any]:
    own = {
        "fedbnn": {"gamma": 0.7, "prior_steps": 100},
        "fedmd": {"digest_epochs": 2},
        "feddf": {"distillation_steps": 200, "learning_rate": 1e-3},
        "fedprox": {"mu": 0.01},
        "pfedme": {"lambda": 15.0, "inner_steps": 5, "beta": 1.0},
        "pfedgp": {"gibbs_steps": 20},
        "pfedbayes": {"zeta": 10.0},
        "fola": {"prior_precision": 0.1},
        "dp_fedavg": {"clip": 1.0, "noise": 0.8},
    }.get(method, {})
    return {
        "seed": seed,
        "rounds": 12,
        "data": {
            "source": "digits",
            "clients": 20,
            "partition": {"kind": "classes", "classes_per_client": 5},
            "alignment": {"points": 400, "kind": "noise", "folder": None},
        },
        "models": ["mlp", "cnn2", "cnn3", "mymodels.vision:small_resnet"],
        "method": {"name": method, **own},
        "training": {"epochs": 20, "batch_size": 32, "learning_rate": 1e-3, "patience": None},
        "privacy": {"enabled": False},
    }


def write_run(folder: Path, result: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    written = sample_config(result["method"], result["seed"]) if config is None else config
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def write_comparison(folder: Path, methods: list[str], seeds: list[int]) -> Path:
    runs = [{"method": m, "seed": s, "folder": f"{m}-seed{s}"} for m in methods for s in seeds]
    for run in runs:
        write_run(folder / str(run["folder"]), sample_result(str(run["method"]), int(str(run["seed"]))))
    (folder / "comparison.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
    return folder
