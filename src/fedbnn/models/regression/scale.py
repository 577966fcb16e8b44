"""The scale of a real-valued target: two public numbers, by which all clients standardise it alike.

    learned = (y - mean) / sd

Both are declared before any record is seen, or known from what is published. They are never fitted on private records:
a mean or a range of these would tell about them.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedbnn.base.errors import UserError

Values = TypeVar("Values", Tensor, NDArray[np.float32])


@dataclass(frozen=True)
class Scale:
    """What a target is about, and how far it goes from there, in its own unit."""

    mean: float
    sd: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean):
            raise UserError(f"data.target_mean = {self.mean}: it must be a finite number")
        if not (math.isfinite(self.sd) and self.sd > 0):
            raise UserError(f"data.target_sd = {self.sd}: it must be a finite number above 0")

    def standard(self, y: Values) -> Values:
        """Values in the target's own unit as models learn them."""
        return (y - self.mean) / self.sd
