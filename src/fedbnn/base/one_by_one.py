"""One record at a time, so that what comes of a record depends on that record alone.

Many records at once are faster, and each one's numbers then depend in their last bits on how many others there are: a
library takes other kernels for other sizes. Whoever chooses what those numbers are multiplied with (a server that sends
a head or weights) can make 4e-8 into 1. Hence, for everything under privacy that is multiplied with numbers from
elsewhere,

    f(x_1, ..., x_n) = (f(x_1), ..., f(x_n))      bit for bit, and so in any order and with any others

Proof. Each call gets the same shapes, and its record at the same place in memory (other arrays lie where torch puts
them: at multiples of 64 bytes, all that its libraries' results may depend on). It runs on one thread, from the same
state of torch's chance, and finds nothing of the records before: the place is overwritten. So it is the same sequence
of instructions on the same numbers. What it takes from elsewhere, a function must not keep: one that counts its calls
is beyond help.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable

T = TypeVar("T")


def one_by_one(function: Callable[..., T], *tensors: Tensor) -> list[T]:
    """What the function makes of each record, which it gets as batches of one, on the CPU.

    It must not return what it was given, nor a view of it: the next record is written over it.
    """
    places = [torch.empty(1, *tensor.shape[1:], dtype=tensor.dtype) for tensor in tensors]
    results = []
    with repeatable(Stream(("one by one",))):
        for record in zip(*tensors, strict=True):
            torch.default_generator.manual_seed(0)
            for place, value in zip(places, record, strict=True):
                place.copy_(value)
            results.append(function(*places))
    return results
