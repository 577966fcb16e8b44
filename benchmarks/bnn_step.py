"""What a Bayesian training step and a Monte Carlo evaluation cost against plain torch, as ratios.

    python benchmarks/bnn_step.py [--json FILE] [--repetitions N]

One thread, batch 128, cnn3 on 28x28x1 and vgg9 on 32x32x3. Compared are
  ours     one variational step: weight draw, forward, backward, analytic KL gradient, fused Adam
  floor    the same network trained deterministically, as fast as torch can: channels-last, pooling before ReLU,
           fused Adam
  plain    the network as one would write it: NCHW, ReLU before pooling, default Adam
  peers    the libraries that are installed, on the plain network
and for evaluation ten weight draws with ours against ten passes of the plain network without gradients.
"""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from peers import installed
from timing import medians
from torch import Tensor, nn
from torch.nn import functional

from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import Anchor, Gaussian, VariationalStep, predict
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records

SETTINGS = {"cnn3": (1, 28, 28), "vgg9": (3, 32, 32)}
BATCH, CLASSES, DRAWS = 128, 10, 10


def relu_before_pooling(network: nn.Module) -> nn.Module:
    """The same network in the usual order."""
    layers = [m for m in network.modules() if not list(m.children())]
    position = 0
    while position < len(layers) - 1:
        if isinstance(layers[position], nn.MaxPool2d) and isinstance(layers[position + 1], nn.ReLU):
            layers[position : position + 2] = layers[position + 1], layers[position]
            position += 1
        position += 1
    return nn.Sequential(*copy.deepcopy(layers))


def deterministic_step(network: nn.Module, x: Tensor, y: Tensor, fused: bool) -> Any:
    adam = torch.optim.Adam(network.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        adam.zero_grad()
        functional.cross_entropy(network(x), y).backward()
        adam.step()

    return step


def measure(model: str, shape: tuple[int, ...], repetitions: int) -> dict[str, float]:
    def make() -> nn.Module:
        return build(ModelSettings(model), shape, CLASSES)

    x, y = torch.randn(BATCH, *shape), torch.randint(0, CLASSES, (BATCH,))
    x_last = x.contiguous(memory_format=torch.channels_last)
    ours = FlatNetwork(make, seed=0)
    posterior = Gaussian.around(ours.weights.clone(), -5.0)
    generator = torch.Generator().manual_seed(0)
    anchor = Anchor(Gaussian.isotropic(ours.size, 0.1), 1e-4)
    step = VariationalStep(ours, posterior, anchor, 1e-3, generator)
    plain = relu_before_pooling(make())
    steps = {
        "ours": lambda: step(Records(x_last, y)),
        "floor": deterministic_step(make().to(memory_format=torch.channels_last), x_last, y, fused=True),
        "plain": deterministic_step(plain, x, y, fused=False),
        **installed(relu_before_pooling(make()), x, y),
    }
    times = medians(steps, repetitions)
    result = {
        "weights": ours.size,
        "ours / floor": times["ours"] / times["floor"],
        "ours / plain": times["ours"] / times["plain"],
        "floor / plain": times["floor"] / times["plain"],
        **{f"{name} / plain": times[name] / times["plain"] for name in steps if name not in ("ours", "floor", "plain")},
    }

    def plain_passes() -> list[Tensor]:
        with torch.no_grad():
            return [plain(x).softmax(1) for _ in range(DRAWS)]

    passes = {"ours": lambda: predict(ours, posterior, x_last, DRAWS, generator), "plain": plain_passes}
    times = medians(passes, max(3, repetitions // 4))
    return {**result, "evaluation, ours / plain": times["ours"] / times["plain"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repetitions", type=int, default=15, help="turns of each alternative on vgg9; six times that on cnn3"
    )
    parser.add_argument("--json", type=Path, help="also write the ratios to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results = {}
    for model, shape in SETTINGS.items():
        count = arguments.repetitions * (6 if model == "cnn3" else 1)
        results[model] = measure(model, shape, count)
        print(f"{model} on {'x'.join(map(str, shape))}, {results[model].pop('weights'):,} weights")
        for name, ratio in results[model].items():
            print(f"  {name:28s} {ratio:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
