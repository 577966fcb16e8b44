"""What exact noise and records that pass alone cost under privacy, as ratios.

    python benchmarks/noise.py [--json FILE] [--repetitions N]

One thread. Compared are
  noise        the discrete Gaussian, drawn exactly, with Gaussian noise rounded to the grid; both of deviation 1.4
  gradients    clipped gradients of 64 records, each alone through the network and added on the grid, with those of the
               whole batch at once by torch.func, added in single precision
  features     of 64 records, each alone, with those of the whole batch
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from timing import medians
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedbnn.features.maps import fit_features
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.network import FlatNetwork
from fedbnn.privacy import clipped_grid_sum
from fedbnn.privacy.sums import with_noise

NUMBERS = (1_001, 20_000, 1_000_000)
NETWORKS = {"mlp": (1, 28, 28), "cnn2": (1, 28, 28), "cnn3": (1, 28, 28)}
RECORDS, CLASSES = 64, 10
FEATURES = {"fourier, 20 columns": (20,), "scattering, 28x28x1": (1, 28, 28), "scattering, 32x32x3": (3, 32, 32)}


def of_batch(network: FlatNetwork, x: Tensor, y: Tensor, clip: float) -> Callable[[], Tensor]:
    """The sum of clipped gradients as it is usually worked out."""
    parameters = {name: p.detach() for name, p in network.module.named_parameters()}

    def loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(network.module, values, (record.unsqueeze(0),))
        return functional.cross_entropy(logits, label.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def summed() -> Tensor:
        rows = torch.cat([gradient.flatten(1) for gradient in each(parameters, x, y).values()], 1)
        return (clip / rows.norm(dim=1)).clamp_max(1) @ rows

    return summed


def noise(numbers: int, repetitions: int) -> float:
    total = torch.zeros(numbers, dtype=torch.int64)
    times = medians(
        {
            "discrete": lambda: with_noise(total, 1.4, "discrete"),
            "continuous": lambda: with_noise(total, 1.4, "continuous"),
        },
        repetitions,
    )
    return times["discrete"] / times["continuous"]


def gradients(model: str, shape: tuple[int, ...], repetitions: int) -> float:
    network = FlatNetwork(lambda: build(ModelSettings(model), shape, CLASSES), seed=0)
    x, y = torch.randn(RECORDS, *shape), torch.randint(CLASSES, (RECORDS,))
    times = medians(
        {"alone": lambda: clipped_grid_sum(network, x, y, 1.0), "batch": of_batch(network, x, y, 1.0)}, repetitions
    )
    return times["alone"] / times["batch"]


def features(shape: tuple[int, ...], repetitions: int) -> float:
    x = torch.rand(RECORDS, *shape)
    chosen = fit_features(torch.rand(200, *shape))
    times = medians({"alone": lambda: chosen(x), "batch": lambda: chosen.batched(x)}, repetitions)
    return times["alone"] / times["batch"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=11, help="turns of each alternative; more of the short ones")
    parser.add_argument("--json", type=Path, help="also write the ratios to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    count = arguments.repetitions
    results = {
        "discrete / continuous noise": {
            f"{numbers:,} numbers": noise(numbers, count if numbers > 100_000 else 20 * count) for numbers in NUMBERS
        },
        "gradients alone / in a batch": {
            f"{model} on {'x'.join(map(str, shape))}": gradients(model, shape, count)
            for model, shape in NETWORKS.items()
        },
        "features alone / in a batch": {name: features(shape, count) for name, shape in FEATURES.items()},
    }
    for title, ratios in results.items():
        print(title)
        for name, ratio in ratios.items():
            print(f"  {name:28s} {ratio:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
