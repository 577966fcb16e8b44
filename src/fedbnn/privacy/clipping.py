"""Sums of gradients that no single record can move far: the private part of DP-SGD (Abadi et al. 2016).

    S = sum_r g_r min(1, C / ||g_r||),   g_r the gradient of record r's cross-entropy

Adding or removing a record moves S by at most C, so noise of standard deviation z C on S has noise multiplier z. With
Poisson sampling, batches of `poisson_batch`, the accountant's `subsampled_epsilon` applies.
"""

import math

import torch
from torch import Tensor

from fedbnn.models.network import FlatNetwork
from fedbnn.privacy.noise import system_uniforms
from fedbnn.privacy.record_gradients import record_gradients

_SHRINK = 1 - 1e-5  # what rounding to single precision could add to a contribution's norm is taken off beforehand
_MOST_NUMBERS = 2**24  # in the gradients of the records that are held at once: 64 MB
_MOST_RECORDS = 128  # at once: more do not make the kernels faster


def clipped_sum(network: FlatNetwork, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """S in the layout of `network.gradient`, and the norms ||g_r|| on the CPU; `network.gradient` itself is left alone.

    A record whose gradient (or its squared norm) is not finite contributes zero: raising an error would tell that it
    is there. Its norm is given as infinity. No contribution is longer than `clip`; the rounding of the sum itself,
    about 1e-7 of its length, comes on top. The network stays in the mode (training or evaluation) it is in.
    """
    if not (clip > 0 and math.isfinite(clip)):
        raise ValueError(f"clip is {clip}: must be a finite number above 0")
    total = torch.zeros_like(network.weights)
    norms = torch.zeros(len(x))
    few = max(1, min(_MOST_RECORDS, _MOST_NUMBERS // network.size))
    for start in range(0, len(x), few):
        part = slice(start, start + few)
        norms[part] = _add_clipped(total, network, x[part], y[part], clip)
    return total, norms


def _add_clipped(total: Tensor, network: FlatNetwork, x: Tensor, y: Tensor, clip: float) -> Tensor:
    pieces = record_gradients(network, x, y)
    norms = torch.stack([piece.squared_norms() for piece in pieces]).sum(0).sqrt()
    broken = ~norms.isfinite()
    weights = (clip * _SHRINK / norms).clamp_max(1).masked_fill(broken, 0).float()  # a norm of zero has weight one
    if broken.any():
        for piece in pieces:
            piece.forget(broken.to(x.device))  # zero times infinity is not zero
    offset, weights = 0, weights.to(x.device)
    for piece in pieces:
        piece.add_weighted(weights, total[offset : offset + piece.width])
        offset += piece.width
    return norms.masked_fill(broken, math.inf).float()


def poisson_batch(n: int, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """The indices of a batch that each of n records joins independently with probability `rate`; may be empty.

    Sampling protects only while nobody can tell who was drawn: without a generator the operating system's randomness
    decides, with one the batch is repeatable by whoever knows the seed.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}: must be above 0 and at most 1")
    uniforms = system_uniforms(n) if generator is None else torch.rand(n, generator=generator, dtype=torch.float64)
    return (uniforms < rate).nonzero().squeeze(1)
