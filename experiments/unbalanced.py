"""What an alignment set costs whose classes are not balanced: ten of one kind for one of another.

    python experiments/unbalanced.py        makes results/unbalanced.json and results/unbalanced.md again

The federation of the preset digits-homogeneous, 220 alignment points: 22 of every class, or 40 of each of five classes
(drawn by the seed) and 4 of each of the others. Nobody is told which. Test records, three seeds, some minutes on one
core. FedBNN's heads agree on what all records say, wherever points lie: nothing in it assumes a balance.
"""

import dataclasses
import json
import statistics
from pathlib import Path

import numpy as np
import torch

from fedbnn import Federation, federate, load_config, load_dataset, make_sites
from fedbnn.data.federated import FederatedData
from fedbnn.runs.results import summary

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
BALANCED, MANY, FEW = 22, 40, 4
SCORES = ("own_class_accuracy", "all_class_accuracy", "nll", "ece")
METHODS = ("fedbnn", "fedbnn_paper", "fedmd")


def aligned_on(data: FederatedData, seed: int, unbalanced: bool) -> FederatedData:
    """The same clients with other alignment points, of records that nobody holds."""
    rng = np.random.default_rng([seed, *b"unbalanced"])
    labels = data.dataset.y_train
    free = np.setdiff1d(np.arange(len(labels)), np.concatenate(data.client_indices))
    common = rng.permutation(data.dataset.classes)[: data.dataset.classes // 2]
    points = []
    for label in range(data.dataset.classes):
        count = (MANY if label in common else FEW) if unbalanced else BALANCED
        points.append(rng.permutation(free[labels[free] == label])[:count])
        assert len(points[-1]) == count, f"only {len(points[-1])} free records of class {label}"
    return dataclasses.replace(data, alignment_indices=np.sort(np.concatenate(points)))


def measure(method: str, seed: int, unbalanced: bool) -> dict[str, dict[str, float]]:
    """Scores of every scored model after the last round."""
    config = load_config(Path("digits-homogeneous"), [f"seed={seed}", "data.alignment=220", f"method={method}"])
    data = federate(load_dataset(config.data), config.data, config.partition, seed)
    data = aligned_on(data, seed, unbalanced)
    sites = make_sites(data, config.models, config.training, rounds=config.rounds, seed=seed)
    federation = Federation(config.chosen(), sites, seed=seed)
    for _ in range(config.rounds):
        federation.step(evaluate=False)
    record = federation.step()
    variants = next(iter(record.scores.values())).keys()
    return {v: summary([scores[v] for scores in record.scores.values()]) for v in variants}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    lines = [__doc__.partition("\n")[0], "", "(`python experiments/unbalanced.py`, which says how.)", ""]
    lines += ["| method | alignment set | own-class, % | all-class, % | NLL | ECE |", "|---|---|---|---|---|---|"]
    for method in METHODS:
        for unbalanced in (False, True):
            found = [measure(method, seed, unbalanced) for seed in SEEDS]
            kind = "10 : 1" if unbalanced else "balanced"
            for variant in found[0]:
                told = []
                for score in SCORES:
                    values = [one[variant][score] * (100 if "accuracy" in score else 1) for one in found]
                    digits = 1 if "accuracy" in score else 3
                    told.append(f"{statistics.mean(values):.{digits}f} ± {statistics.pstdev(values):.{digits}f}")
                    rows.append({"method": method, "alignment": kind, "model": variant, score: values})
                lines.append(f"| {method}, {variant} | {kind} | {' | '.join(told)} |")
                print(lines[-1], flush=True)
    out = HERE / "results" / "unbalanced.json"
    out.write_text(json.dumps({"seeds": SEEDS, "rows": rows}, indent=1) + "\n")
    out.with_suffix(".md").write_text(
        "\n".join([*lines, "", f"Mean ± standard deviation over {len(SEEDS)} seeds."]) + "\n"
    )


if __name__ == "__main__":
    main()
