"""Gaussian noise for releases, from the operating system's randomness.

    x = sd * (0.8 Phi^-1(u) + 0.6 Phi^-1(v)),   u, v = (k + 1/2) / 2^53,   k random whole numbers of 53 bits

A seeded generator would let whoever knows the seed subtract the noise; this noise nobody can repeat, not even who drew
it. In the tails of Phi^-1(u) alone possible values lie far apart, and which of them were possible would tell what they
were added to; of two such numbers the sums lie dense. Values lie within 11.5 standard deviations, which changes no
probability by more than 2^-52.
"""

import math
import os

import numpy as np
import torch
from torch import Tensor


def gaussian_noise(size: int, sd: float, generator: torch.Generator | None = None, *, double: bool = False) -> Tensor:
    """`size` independent draws of N(0, sd^2), in single or double precision.

    With a generator the draws are repeatable, for tests and simulations: they protect nothing from who has the seed.
    """
    if not (sd > 0 and math.isfinite(sd)):
        raise ValueError(f"sd is {sd}: must be a finite number above 0")
    if generator is not None:
        kind = torch.float64 if double else torch.float32
        return torch.empty(size, dtype=kind).normal_(generator=generator).mul_(sd)
    normal: Tensor = torch.special.ndtri(system_uniforms(2 * size)).view(2, size)
    normal = normal[0].mul_(0.8 * sd).add_(normal[1], alpha=0.6 * sd)
    return normal if double else normal.float()


def system_uniforms(size: int) -> Tensor:
    """`size` independent numbers, uniform in the open interval (0, 1), that no seed decides; double precision."""
    words = np.frombuffer(bytearray(os.urandom(8 * size)), dtype=np.uint64)
    words >>= np.uint64(11)
    uniforms = torch.from_numpy(words.view(np.int64)).double().add_(0.5).mul_(2.0**-53)
    # Above 2^52 the half is rounded away, upwards for every second k: the largest k would give 1.
    return uniforms.clamp_max_(1 - 2.0**-53)
