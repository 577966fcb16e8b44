"""Randomness by name instead of by order.

Every random number comes from a generator whose seed is a hash of *what it is for*: (run seed, round, client,
purpose). So the order in which clients run, the number of workers and the engine cannot change a result, and a
resumed run needs no saved generator.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from fedbnn.base.devices import CPU


@dataclass(frozen=True)
class Stream:
    """A named place in the tree of randomness; `child` goes down, `torch` and `numpy` make generators."""

    path: tuple[str | int, ...]
    device: torch.device = CPU  # where torch's generators draw; has no part in the seed

    def child(self, *names: str | int) -> "Stream":
        return Stream(self.path + names, self.device)

    def on_cpu(self) -> "Stream":
        """The same place, for what is computed on the CPU whatever the device."""
        return Stream(self.path)

    @property
    def seed(self) -> int:
        digest = hashlib.sha256(repr(self.path).encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def torch(self) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self.seed)

    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread: more of them wait for work by turning round, on cores that workers need."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def repeatable(stream: Stream) -> Iterator[None]:
    """One thread and a seeded global generator (for a user's dropout): the same bits wherever this is computed.

    On CUDA also kernels that repeat themselves, in full single precision. What was drawn before from the global
    generator goes on afterwards, on the CPU and on CUDA.
    """
    forked = [stream.device] if stream.device.type == "cuda" else []
    cudnn = torch.backends.cudnn
    with (
        one_thread(),
        torch.random.fork_rng(forked, device_type="cuda"),
        cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=False),
    ):
        # torch.manual_seed reaches every device, and writes down the call stack for it: 2 ms that the CPU can save.
        seed = torch.default_generator.manual_seed if stream.device == CPU else torch.manual_seed
        seed(stream.child("global").seed)
        yield
