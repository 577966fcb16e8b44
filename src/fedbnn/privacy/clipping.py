"""Sums of gradients that no single record can move far: the private part of DP-SGD (Abadi et al. 2016).

    S = sum_r trunc(c_r / u),   c_r = g_r min(1, C / ||g_r||),   g_r the gradient of record r's cross-entropy

Each record passes through the network alone (`base/one_by_one.py`), so that g_r is a function of that record and the
weights, whoever chose these, and c_r / u is truncated to whole numbers on the grid of `sums.py`, which add up without
rounding. So adding or removing a record moves S by exactly trunc(c_r / u), which is at most C / u long, and noise of
standard deviation z C / u has noise multiplier z. With Poisson sampling, batches of `poisson_batch`, the accountant's
`subsampled_epsilon` applies.

||c_r|| <= C in floating point: with e = 2^-53, a sum of D squares in double precision is off by less than a factor
1 +- (D + 1) e in any order, so the norm by less than (D + 2) e; the factor C / ||g_r|| and each product with it add
3 e. C is lowered by 2 (D + 8) e beforehand. Squares of single-precision numbers neither overflow nor underflow.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbnn.base.devices import CPU
from fedbnn.base.one_by_one import one_by_one
from fedbnn.models.network import FlatNetwork, view_of
from fedbnn.privacy.noise import system_uniforms
from fedbnn.privacy.sums import LARGEST, UNIT

_PIECE = 2**16  # numbers that are brought to the grid at once: they stay in the cache


def clipped_grid_sum(network: FlatNetwork, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """S, whole numbers in the layout of `network.gradient`, and the norms ||g_r||; both on the CPU, as the arithmetic.

    A record whose gradient is not finite contributes zero: raising an error would tell that it is there. Its norm is
    given as infinity. The network is in evaluation meanwhile, for a draw of dropout is not a function of the record,
    and is left as it was, its `gradient` too.
    """
    if not 0 < clip <= LARGEST * UNIT:
        raise ValueError(f"clip is {clip}: must be above 0 and at most {LARGEST * UNIT:g}")
    module = network.module if network.weights.device == CPU else deepcopy(network.module).to(CPU)
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradient = torch.empty(network.size, dtype=torch.float64)
    places, offset = [], 0
    for parameter in parameters:
        places.append(view_of(gradient, offset, parameter.shape))
        offset += parameter.numel()
    total = torch.zeros(network.size, dtype=torch.int64)
    most = clip * (1 - (network.size + 8) * 2.0**-52)

    def add(record: Tensor, label: Tensor) -> float:
        with torch.enable_grad():
            loss = functional.cross_entropy(module(record), label)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        for place, value in zip(places, gradients, strict=True):
            place.copy_(value)
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            return math.inf
        factor = min(1.0, most / norm) / UNIT if norm else 0.0
        for part, numbers in zip(total.split(_PIECE), gradient.split(_PIECE), strict=True):
            part.add_(numbers.mul_(factor).to(torch.int64))  # which truncates
        return norm

    with _in_evaluation(module):
        norms = one_by_one(add, x, y)
    return total, torch.tensor(norms, dtype=torch.float64)


@contextmanager
def _in_evaluation(module: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def poisson_batch(n: int, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """The indices of a batch that each of n records joins independently with probability `rate`; may be empty.

    Sampling protects only while nobody can tell who was drawn: without a generator the operating system's randomness
    decides, with one the batch is repeatable by whoever knows the seed.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}: must be above 0 and at most 1")
    uniforms = system_uniforms(n) if generator is None else torch.rand(n, generator=generator, dtype=torch.float64)
    return (uniforms < rate).nonzero().squeeze(1)
