"""A Bayesian softmax head in double precision: a small model on fixed features, with a Gaussian posterior.

Its weights W, with the bias as their last row, are where

    sum over rows x of CE(target, z W + offset)  +  penalty |W|^2 / 2  +  strength / 2 mean over points of |z W - v|^2

is least: z the features with a one, the bias penalised a thousandth as much. The offset is what is known of labels
before x is seen (a log prior); the last term is a Gaussian prior on what the head *says* at public points. Rows of
targets need not be normalised: their sum is the row's weight.

The last two terms are |L^T W - L^-1 (strength mean of z^T v)|^2 / 2 but for a constant, with L L^T = Q their curvature,
which does not depend on the rows. So W is sought as L^T W, in which the prior is round (`Ground`), and only along the
rows, outside of whose span nothing can be gained.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable

REMEMBERED = 20  # steps: with a hundred, which L-BFGS would keep, most of its time goes into them
BIAS = 1e-3  # of the penalty falls on a bias: it may be nearly anything


@dataclass(frozen=True)
class Rows:
    """Features, targets over all classes, and the offset of every row's logits."""

    features: Tensor
    target: Tensor
    offset: Tensor  # of all rows alike, or of each


@dataclass(frozen=True)
class Ground:
    """What a head costs before any row is seen, for a number of heads alike.

    Attributes:
        root: L.
        points: z L^-T of the public points; none where nothing is said at them.
        strength: of the Gaussian prior at all points together.

    """

    root: Tensor
    points: Tensor
    strength: float

    @classmethod
    def of(cls, features: Tensor, strength: float, penalty: float) -> "Ground":
        """Of public points with these features; with none, the penalty alone."""
        with repeatable(Stream(("softmax",))):  # one thread: the same bits everywhere
            z = with_one(features)
            quadratic = z.T @ z * (strength / max(1, len(z)))
            quadratic.diagonal()[:-1].add_(penalty)
            quadratic[-1, -1] += BIAS * penalty
            root = torch.linalg.cholesky(quadratic)
            return cls(root, _whitened(z, root), strength)

    def weights(self, whitened: Tensor) -> Tensor:
        """W [features + 1, classes], of L^T W."""
        solved: Tensor = torch.linalg.solve_triangular(self.root.T, whitened, upper=True)
        return solved.contiguous()  # a state that is saved lies in one piece

    def start(self, v: Tensor) -> Tensor:
        """L^T W of the head that nothing but v was said to."""
        return self.points.T @ v * (self.strength / max(1, len(v)))


def with_one(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def logits(weights: Tensor, features: Tensor) -> Tensor:
    return torch.addmm(weights[-1], features, weights[:-1])


def fit_head(rows: Rows, ground: Ground, v: Tensor | None = None, most_steps: int = 100) -> Tensor:
    """L^T W where the loss is least [features + 1, classes]; without v the prior's mean is zero.

    No curvature of the cross-entropy is larger than X^T M X / 2, with M the rows' weights (Boehning 1992). So L-BFGS in
    the eigenvectors of X^T M X, each scaled by what its curvature can be at the most, needs some tens of steps.
    """
    with repeatable(Stream(("softmax",))):  # one thread: the same bits everywhere
        return _minimise(rows, ground, v, most_steps)


def _minimise(rows: Rows, ground: Ground, v: Tensor | None, most_steps: int) -> Tensor:
    x, target = _whitened(with_one(rows.features), ground.root), rows.target
    start = x.new_zeros(x.shape[1], target.shape[1]) if v is None else ground.start(v)
    mass = target.sum(1, keepdim=True)
    basis, curved = _directions(mass.sqrt() * x)
    if basis.shape[1] == 0:  # no rows
        return start
    scale = (1 + curved / 2).rsqrt()
    basis = basis * scale
    z, costs, said = x @ basis, scale.square().unsqueeze(1), x @ start + rows.offset
    unknown = torch.nn.Parameter(x.new_zeros(basis.shape[1], target.shape[1]), requires_grad=False)
    optimiser = torch.optim.LBFGS(
        [unknown],
        max_iter=most_steps,
        tolerance_grad=1e-6,
        tolerance_change=1e-12,
        history_size=REMEMBERED,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        logs = (z @ unknown + said).log_softmax(1)
        unknown.grad = z.T @ (mass * logs.exp() - target) + costs * unknown
        return (costs * unknown.square()).sum() / 2 - torch.where(target > 0, target * logs, 0.0).sum()

    optimiser.step(loss)
    return (start + basis @ unknown).detach()


def _directions(x: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvectors of x^T x that are not nothing, as columns, and their eigenvalues; by its smaller side."""
    if len(x) <= x.shape[1]:
        values, vectors = torch.linalg.eigh(x @ x.T)
        real = values > 1e-14 * values.amax() if len(values) else values > 0
        return x.T @ vectors[:, real] * values[real].rsqrt(), values[real]
    values, vectors = torch.linalg.eigh(x.T @ x)
    return vectors, values.clamp_min(0)


def _whitened(z: Tensor, root: Tensor) -> Tensor:
    solved: Tensor = torch.linalg.solve_triangular(root, z.T, upper=False)
    return solved.T.contiguous()


def curvature(features: Tensor, each: float) -> Tensor:
    """The part of a posterior's precision that rows of these features bring, each with the same weight."""
    z = with_one(features)
    return z.T @ z * each


def draw_weights(weights: Tensor, precision: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` draws of W, whose columns are N(weights, precision^-1) each by itself [count, features + 1, classes]."""
    with repeatable(Stream(("softmax",))):
        root = torch.linalg.cholesky(precision)
        normal = torch.randn(count, *weights.shape, generator=generator, dtype=torch.float64)
        drawn: Tensor = weights + torch.linalg.solve_triangular(root.T, normal, upper=True)
    return drawn
