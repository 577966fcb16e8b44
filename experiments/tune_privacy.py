"""How far a private head steps and how cautious it is: the choice of `privacy.head.TEACHER` and `MOMENTS`.

    python experiments/tune_privacy.py      (needs the data sets mnist and cifar10, as the plan privacy does)

The consensus of 20 clients (5 of 10 classes, 250 records each) on validation records, MNIST and CIFAR-10, seeds 10 and
11, for each step and caution in a grid, with and without noise. Makes results/tune_privacy.json again and prints the
table. Here the noise is seeded: nothing leaves, and candidates are compared on the same noise.

No search of `fedbnn tune`: step and caution are constants of the mechanism and no settings, and what is judged is the
consensus itself, with the same noise for every candidate, and no run.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbnn import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.base.errors import UserError
from fedbnn.features.public import Public, public
from fedbnn.methods.consensus import join
from fedbnn.privacy import noise_multiplier
from fedbnn.privacy.head import MOMENTS, TEACHER, Recipe, Shape, contributions, improved

HERE = Path(__file__).resolve().parent
DATASETS = ("mnist", "cifar10")
SEEDS = (10, 11)
EPSILONS = (0.5, 1.0, 3.0, 8.0, math.inf)
DELTA = 1e-5
CLASSES = 10
CANDIDATES = {
    "dp_teacher": [Recipe(step, caution) for step in (4.0, 6.0, 8.0) for caution in (0.5, 1.0, 2.0)],
    "dp_moments": [Recipe(step, caution) for step in (4.0, 8.0) for caution in (1.0, 2.0, 4.0, 8.0)],
}
CHOSEN = {"dp_teacher": TEACHER, "dp_moments": MOMENTS}


class Federation:
    """Features of everything, worked out once."""

    def __init__(self, dataset: str, seed: int) -> None:
        data = DataSettings(source=dataset, alignment=2000, validation=2000)
        partition = PartitionSettings(clients=20, classes_per_client=5, records_per_class=50)
        dealt = federate(load_dataset(data), data, partition, seed)
        self.public: Public = public(torch.from_numpy(dealt.alignment()), "auto", 100)
        x, y, _ = dealt.evaluation("validation")
        self.x, self.y = self.public.map(torch.from_numpy(x)), torch.from_numpy(y)
        records = [dealt.client_arrays(client) for client in range(dealt.n_clients)]
        self.clients = [(self.public.map(torch.from_numpy(x)), torch.from_numpy(y)) for x, y in records]
        self.shape = Shape(self.public.map.dimensions, CLASSES)

    def teachers(self, recipe: Recipe, sd: float, noise: torch.Generator) -> Tensor:
        """The joined outputs of one head a client on validation records, whose inputs join the alignment set's."""
        totals = [self._sum(client, sd, noise) for client in self.clients]
        found = [self._step(total, sd, recipe) for total in totals]
        both = torch.stack([torch.cat([self.public.phi @ head, self.x @ head]).softmax(1) for head in found])
        return join(both, torch.ones(len(both)), "by_class", 1.0)[len(self.public.phi) :]

    def moments(self, recipe: Recipe, sd: float, noise: torch.Generator) -> Tensor:
        """The outputs of the one head from everybody's sums."""
        total = torch.stack([self._sum(client, sd, noise) for client in self.clients]).sum(0)
        return (self.x @ self._step(total, sd * math.sqrt(len(self.clients)), recipe)).softmax(1)

    def _sum(self, client: tuple[Tensor, Tensor], sd: float, noise: torch.Generator) -> Tensor:
        total = contributions(*client, self.shape.empty(), self.shape).sum(0)
        return total + sd * torch.randn(len(total), generator=noise, dtype=torch.float64)

    def _step(self, total: Tensor, sd: float, recipe: Recipe) -> Tensor:
        return improved(self.shape.empty(), total, sd, self.public.moments, self.shape, recipe)


def score(federations: Sequence[Federation], mechanism: str, recipe: Recipe, epsilon: float) -> dict[str, float]:
    """Mean accuracy and NLL over seeds."""
    accuracy, nll = [], []
    for seed, one in zip(SEEDS, federations, strict=True):
        sd = 0.0 if math.isinf(epsilon) else noise_multiplier(epsilon, DELTA) * one.shape.sensitivity
        noise = torch.Generator().manual_seed(seed)
        probs = (one.teachers if mechanism == "dp_teacher" else one.moments)(recipe, sd, noise)
        accuracy.append(float((probs.argmax(1) == one.y).double().mean()))
        nll.append(float(torch.nn.functional.nll_loss(probs.clamp_min(1e-9).log(), one.y)))
    return {"accuracy": sum(accuracy) / len(accuracy), "nll": sum(nll) / len(nll)}


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    found: list[dict[str, Any]] = []
    for dataset in DATASETS:
        federations = [Federation(dataset, seed) for seed in SEEDS]
        for mechanism, recipes in CANDIDATES.items():
            for recipe in recipes:
                scores = {f"{epsilon:g}": score(federations, mechanism, recipe, epsilon) for epsilon in EPSILONS}
                row = {"dataset": dataset, "mechanism": mechanism, "step": recipe.step, "caution": recipe.caution}
                found.append({**row, "chosen": recipe == CHOSEN[mechanism], "scores": scores})
                cells = "  ".join(f"{name}: {one['accuracy']:.3f} {one['nll']:.2f}" for name, one in scores.items())
                print(*row.values(), "*" if recipe == CHOSEN[mechanism] else " ", cells, flush=True)
    (HERE / "results" / "tune_privacy.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
