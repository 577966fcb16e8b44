"""A Bayesian softmax head in double precision: a small model on fixed features, with a Gaussian posterior.

Its weights W, with the bias as their last row, are where

    sum over rows x of CE(target, z W + offset)  +  penalty |W|^2 / 2  +  strength / 2 mean over points of |z W - v|^2

is least: z the features with a one, the bias not penalised. The offset is what is known of labels before x is seen (a
log prior); the last term is a Gaussian prior on what the head *says* at public points. Rows of targets need not be
normalised: their sum is the row's weight.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable


@dataclass(frozen=True)
class Rows:
    """Features, targets over all classes, and the offset of every row's logits."""

    features: Tensor
    target: Tensor
    offset: Tensor  # of all rows alike, or of each


@dataclass(frozen=True)
class Sayings:
    """The Gaussian prior on what a head says at public points: N(v, 1 / strength), each point 1 / points of it."""

    features: Tensor  # points x features
    v: Tensor  # points x classes
    strength: float


def with_one(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def logits(weights: Tensor, features: Tensor) -> Tensor:
    return torch.addmm(weights[-1], features, weights[:-1])


def fit_head(rows: Rows, penalty: float, sayings: Sayings | None = None, most_steps: int = 100) -> Tensor:
    """W where the loss is least [features + 1, classes].

    No curvature of the cross-entropy is larger than X^T M X / 2, with M the rows' weights (Boehning 1992). So L-BFGS on
    U = L^T W, with L L^T = X^T M X / 2 + the curvature of the other terms, needs some tens of steps, where on W it
    would need thousands.
    """
    with repeatable(Stream(("softmax",))):  # one thread: the same bits everywhere
        return _minimise(rows, penalty, sayings, most_steps)


def _minimise(rows: Rows, penalty: float, sayings: Sayings | None, most_steps: int) -> Tensor:
    x, target = with_one(rows.features), rows.target
    mass = target.sum(1, keepdim=True)
    quadratic = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    linear = torch.zeros(x.shape[1], target.shape[1], dtype=torch.float64)
    if sayings is not None:
        z = with_one(sayings.features)
        quadratic += z.T @ z * (sayings.strength / len(z))
        linear += z.T @ sayings.v * (sayings.strength / len(z))
    quadratic.diagonal()[:-1].add_(penalty)
    bound = x.T @ (mass * x) / 2 + quadratic
    bound.diagonal().add_(1e-9 * float(mass.sum()) + 1e-12)
    root = torch.linalg.cholesky(bound)
    unknown = torch.nn.Parameter(
        torch.linalg.solve_triangular(root, linear, upper=False).contiguous(), requires_grad=False
    )
    optimiser = torch.optim.LBFGS(
        [unknown], max_iter=most_steps, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def weights() -> Tensor:
        solved: Tensor = torch.linalg.solve_triangular(root.T, unknown, upper=True)
        return solved

    def loss() -> Tensor:
        w = weights()
        logs = (x @ w + rows.offset).log_softmax(1)
        curved = quadratic @ w
        gradient = x.T @ (mass * logs.exp() - target) + curved - linear
        unknown.grad = torch.linalg.solve_triangular(root, gradient, upper=False).contiguous()
        return (w * (curved / 2 - linear)).sum() - torch.where(target > 0, target * logs, 0.0).sum()

    optimiser.step(loss)
    return weights().detach().contiguous()  # a state that is saved lies in one piece


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
