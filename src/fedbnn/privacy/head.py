"""A softmax head on public features, trained from sums over records: the mathematics, without noise and ledgers.

With phi the features of a record, ||phi|| <= 1, W the head (features x classes), p = softmax(phi W):

    one record:   v = (phi (e_y - p)^T, shortened to length c;  a),      ||v|| <= Delta = sqrt(c^2 + a^2)
    a sum:        (S, a n) = sum over records of v
    a step:       W <- W + step * F S / n,      F = G (G^2 + r G + (k s)^2 I)^-1,
                  G = mean over the alignment set of phi phi^T,  s = deviation of the noise on S / n

The first is all that is ever asked of records. At W = 0 no gradient is longer than sqrt(1 - 1 / classes), which is the
c that is used. The count n is private too (how many records a client has may tell that one was added), hence the
number a: it makes the count part of the sum, at five percent more noise. The step is Newton's for the squared loss
with the alignment set's second moment for the records' (F = G^-1 but for a small r), through a Wiener filter: along a
direction with eigenvalue g the noise is s and the signal g times a coefficient of about 1 / k, so F is 1 / g where the
signal wins and nothing where it does not. So one setting serves every epsilon and every number of records.

Sums may be one client's (its own head, `dp_teacher`) or all clients' (one common head, `dp_moments`). Many noisy heads
are averaged afterwards and want less caution each; `experiments/tune_privacy.py` chose both on validation records.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.base.one_by_one import one_by_one

LARGEST = 1e6  # of a head's numbers: none that is learned comes near
_COUNT_WEIGHT = 1 / 3  # a / c
_LEAST_RIDGE = 1e-3  # r: also without noise, the last directions of the alignment set are not fully trusted
_TINY = 1e-30
_SHRINK = 1 - 1e-9  # what rounding in double precision could add to a norm


@dataclass(frozen=True)
class Recipe:
    """How far a step goes, and how large its coefficients are believed to be (the reciprocal of `caution`)."""

    step: float
    caution: float


TEACHER = Recipe(step=6.0, caution=1.0)
MOMENTS = Recipe(step=8.0, caution=4.0)


@dataclass(frozen=True)
class Shape:
    """Sizes of a head, and what follows from them for the sums."""

    features: int
    classes: int

    @property
    def numbers(self) -> int:
        """In a sum: the gradient's and the count."""
        return self.features * self.classes + 1

    @property
    def clip(self) -> float:
        return math.sqrt(1 - 1 / self.classes)

    @property
    def count_weight(self) -> float:
        return _COUNT_WEIGHT * self.clip

    @property
    def sensitivity(self) -> float:
        return math.hypot(self.clip, self.count_weight)

    def empty(self) -> Tensor:
        """The head that knows nothing."""
        return torch.zeros(self.features, self.classes)


def contributions(phi: Tensor, y: Tensor, head: Tensor, shape: Shape) -> Tensor:
    """A row v for every record, in double precision; zero for a record without finite numbers.

    Nothing about `phi`, `y` and `head` is trusted: whatever they hold, no row is longer than the sensitivity, and each
    is a function of its own record and the head alone (`base/one_by_one.py`). So a record more or less moves the sum of
    the truncated rows by exactly its own.
    """
    head, known = head.double(), torch.eye(shape.classes, dtype=torch.float64)
    count = torch.tensor([shape.count_weight * _SHRINK], dtype=torch.float64)
    nothing = torch.zeros(shape.numbers, dtype=torch.float64)

    def contribution(one: Tensor, label: Tensor) -> Tensor:
        one, y = one.double(), int(label)
        length = float(torch.linalg.vector_norm(one))
        if not (0 < length < math.inf and 0 <= y < shape.classes):
            return nothing
        one = one / max(length, 1.0)
        gradient = (one.T * (known[y] - (one @ head).softmax(1))).flatten()
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            return nothing
        return torch.cat([gradient * (min(1.0, shape.clip / max(norm, _TINY)) * _SHRINK), count])

    rows = one_by_one(contribution, phi, y)
    return torch.stack(rows) if rows else torch.empty(0, shape.numbers, dtype=torch.float64)


def improved(
    head: Tensor, total: Tensor, sd: float, moments: tuple[Tensor, Tensor], shape: Shape, recipe: Recipe
) -> Tensor:
    """The head after one step with a sum on whose numbers lies noise of deviation `sd`; post-processing.

    `moments` are G's eigenvalues and eigenvectors.
    """
    total = total.double()
    # A count below its own noise says only that records are few.
    count = max(float(total[-1]) / shape.count_weight, sd / shape.count_weight, 1.0)
    gradient = total[:-1].view(shape.features, shape.classes) / count
    values, vectors = moments
    filtered = values / (values * (values + _LEAST_RIDGE) + (recipe.caution * sd / count) ** 2).clamp_min(_TINY)
    moved = vectors @ (filtered.unsqueeze(1) * (vectors.T @ gradient))
    return (head.double() + recipe.step * moved).float()
