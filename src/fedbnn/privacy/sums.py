"""Sums over records that leave with noise: whole numbers on a fixed grid, so that they add up exactly.

    release = sum_r trunc(v_r / u) + noise / u,      u = 2^-32,   ||v_r|| <= Delta

Truncating towards zero makes no v_r longer, and whole numbers have no rounding, so one record moves the sum by at most
Delta / u, exactly. With floating point neither would hold, and the last bits of a noisy sum can give the summands away
(Mironov 2012). Releases of several clients can be added by anybody, also by a protocol that sees only their sum (secure
aggregation): there each of N clients needs only the share 1 / N of the noise's variance.

Noise is the discrete Gaussian, drawn exactly, whose distance from the Gaussian is part of its cost (`privacy.cost`), or
Gaussian rounded to the grid, which costs what the Gaussian costs.
"""

from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.privacy.cost import discrete_gap
from fedbnn.privacy.discrete import discrete_gaussian
from fedbnn.privacy.noise import gaussian_noise

Noise = Literal["continuous", "discrete"]

UNIT = 2.0**-32
LARGEST = 2**52  # of a number before its noise, in units
RELEASED = 2 * LARGEST  # of a released number: a thousand clients' sum is still below 2^63
LARGEST_SD = 2.0**23  # of discrete noise: what the sampler can draw; releases end at 2^21 in any case
MARGIN = 1e-6  # more noise than planned, relative: room for the gap of discrete noise


def grid_sum(rows: Tensor) -> Tensor:
    """The sum of the rows, each truncated to the grid: whole numbers, in units."""
    return (rows.double() / UNIT).trunc().to(torch.int64).sum(0)


def with_noise(total: Tensor, sd: float, noise: Noise, generator: torch.Generator | None = None) -> Tensor:
    """The sum, in units, with fresh noise of standard deviation sd on every number.

    With a generator it is Gaussian noise that is rounded and repeatable, for experiments: it protects nothing from who
    has the seed, whatever `noise` says.
    """
    if noise == "discrete" and generator is None:
        drawn = torch.from_numpy(discrete_gaussian(total.numel(), Fraction(sd / UNIT) ** 2))
    else:
        exact = gaussian_noise(total.numel(), sd, generator, double=True).div_(UNIT)
        most = float(LARGEST + RELEASED)  # beyond it the release is cut off in any case, whatever the sum
        drawn = exact.clamp_(-most, most).round_().to(torch.int64)
    # The sum is brought into its range first, which moves no two sums further apart: cut off afterwards alone, one that
    # is too large would leave without noise.
    return (total.clamp(-LARGEST, LARGEST) + drawn.view_as(total)).clamp_(-RELEASED, RELEASED)


def gap_of(sd: float, numbers: int, noise: Noise) -> float:
    """How far noise of this deviation on so many numbers is from rounded Gaussian noise; see `privacy.cost`."""
    if noise == "continuous":
        return 0.0
    if sd > LARGEST_SD:
        raise UserError(f"privacy.noise = 'discrete': a standard deviation of {sd:.3g} cannot be drawn")
    return discrete_gap(sd / UNIT, numbers)
