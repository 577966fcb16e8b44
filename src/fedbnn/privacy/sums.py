"""Sums over records that leave with noise: whole numbers on a fixed grid, so that they add up exactly.

    release = sum_r trunc(v_r / u) + noise / u,      u = 2^-32,   ||v_r|| <= Delta

Truncating towards zero makes no v_r longer, and whole numbers have no rounding, so one record moves the sum by at most
Delta / u, exactly. With floating point neither would hold, and the last bits of a noisy sum can give the summands away
(Mironov 2012). Releases of several clients can be added by anybody, also by a protocol that sees only their sum (secure
aggregation): there each of N clients needs only the share 1 / N of the noise's variance.

Noise is either Gaussian rounded to the grid, which costs what the Gaussian costs, or the discrete Gaussian. The latter
differs from the former by at most 1 / (40 s^2) in total variation per number, s = sigma / u >= 1. (The rounded density
is density(x) (1 + (x^2 / s^2 - 1) / (24 s^2) + ...), and E |x^2 / s^2 - 1| < 1.) Over D numbers that adds
(1 + e^epsilon) D / (40 s^2) to delta, D the numbers of all releases together. A mu that is larger by a millionth has a
delta that is larger by a millionth of mu d delta / d mu = mu density(epsilon / mu - mu / 2), density that of the
standard normal: where that is more, charging the larger mu covers it.
"""

import math
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from fedbnn.privacy.accountant import gaussian_mu
from fedbnn.privacy.discrete import discrete_gaussian
from fedbnn.privacy.noise import gaussian_noise

Noise = Literal["continuous", "discrete"]

UNIT = 2.0**-32
LARGEST = 2**52  # of a released number, in units: a thousand clients' sum is still far from 2^63
MILLIONTH = 1e-6
_MOST_SD = 2.0**8  # of discrete noise: what the sampler can draw


def grid_sum(rows: Tensor) -> Tensor:
    """The sum of the rows, each truncated to the grid: whole numbers, in units."""
    return (rows.double() / UNIT).trunc().to(torch.int64).sum(0)


def with_noise(total: Tensor, sd: float, noise: Noise) -> Tensor:
    """The sum, in units, with fresh noise of standard deviation sd on every number."""
    if noise == "discrete":
        drawn = torch.from_numpy(discrete_gaussian(total.numel(), Fraction(sd / UNIT) ** 2))
    else:
        exact = gaussian_noise(total.numel(), sd, double=True).div_(UNIT)
        drawn = exact.clamp_(-2.0 * LARGEST, 2.0 * LARGEST).round_().to(torch.int64)
    return (total + drawn.view_as(total)).clamp_(-LARGEST, LARGEST)


def charged(mu: float, noise: Noise) -> float:
    """What a release of this mu = Delta / sd has to be charged with this noise."""
    return mu * (1 + MILLIONTH) if noise == "discrete" else mu


def check_discrete(sd: float, numbers: int, epsilon: float, delta: float) -> str:
    """Why discrete noise of this size on so many numbers cannot be accounted for; empty if it can."""
    if sd > _MOST_SD:
        return f"discrete noise of standard deviation {sd:.3g} cannot be drawn, {_MOST_SD:g} is the most"
    beyond = math.log1p(math.exp(-epsilon)) + epsilon + math.log(numbers / 40) - 2 * math.log(sd / UNIT)
    mu = gaussian_mu(epsilon, delta)
    density = -0.5 * (epsilon / mu - mu / 2) ** 2 - 0.5 * math.log(2 * math.pi)
    if beyond > math.log(0.99 * MILLIONTH * mu) + density:
        return f"at epsilon {epsilon:g} discrete noise is too far from Gaussian to be accounted as such"
    return ""
