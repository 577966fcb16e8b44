"""The work of `benchmarks.throughput` in plain torch, as a user of any of the other libraries would write it.

Imports nothing of ours: a peer with dependencies of its own lives in another environment.
"""

import json
import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

ANSWER = "@ "  # begins the lines of standard output that are meant for the benchmark
FIRST = "{peer}.npz"  # the weights after the first round


class Net(nn.Module):
    """The network that ours are named cnn2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, 24)
        self.fc2 = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        out: Tensor = self.fc2(functional.relu(self.fc1(x.flatten(1))))
        return out


def train(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], learning_rate: float) -> float:
    """An epoch of Adam, begun anew; the last minibatch's loss."""
    net.train()
    adam = torch.optim.Adam(net.parameters(), lr=learning_rate)
    loss = torch.zeros(())
    for x, y in batches:
        adam.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        adam.step()
    return loss.item()


def settings(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    return found


@lru_cache(maxsize=1)
def records(folder: Path) -> tuple[Tensor, Tensor]:
    """All clients' inputs, clients x records x 1 x 28 x 28, and labels."""
    with np.load(folder / "records.npz") as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


def initial(folder: Path) -> Net:
    net = Net()
    with np.load(folder / "initial.npz") as file, torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.from_numpy(file[str(number)]))
    return net


def keep(folder: Path, peer: str, parameters: Iterable[Tensor]) -> None:
    """Leave the weights after the first round for the benchmark to look at."""
    arrays = {str(number): one.detach().numpy() for number, one in enumerate(parameters)}
    np.savez(folder / FIRST.format(peer=peer), **arrays)


class Blocks:
    """Rounds are held in blocks, as many as each line of standard input asks for."""

    def __init__(self) -> None:
        self._begun: float | None = None

    def next(self) -> int:
        """Answer how long the last block took, and wait for the next; 0: there is none."""
        took = "ready" if self._begun is None else repr(time.perf_counter() - self._begun)
        print(ANSWER + took, flush=True)
        line = sys.stdin.readline()
        self._begun = time.perf_counter()
        return int(line or 0)
