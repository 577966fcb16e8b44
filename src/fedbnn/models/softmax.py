"""Softmax regression in double precision: a small model on fixed features.

It minimises over W, with the bias b as its last row,

    sum over rows x of CE(target, x W + b) + STRENGTH |W|^2 / 2

Rows of targets need not be normalised: their sum is the row's weight. A class that no row names has probability zero.
"""

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable

STRENGTH = 1.0  # of the penalty |W|^2 / 2, not on the bias, with features scaled to a mean deviation of one


def fit_softmax(features: Tensor, target: Tensor) -> Tensor:
    """W for all classes; the columns of classes that no row names are minus infinity, where their bias would go."""
    named = target.sum(0) > 0
    weights = torch.full((features.shape[1] + 1, len(named)), -torch.inf, dtype=torch.float64)
    with repeatable(Stream(("softmax",))):  # one thread: the same bits everywhere
        weights[:, named] = minimise(features, target[:, named])
    return weights


def softmax_probabilities(weights: Tensor, points: Tensor) -> Tensor:
    """The class probabilities of the model at these points, in single precision."""
    named = weights[-1].isfinite()
    fitted = weights[:, named]
    probs = torch.zeros(len(points), len(named))
    with repeatable(Stream(("softmax",))):
        probs[:, named] = torch.addmm(fitted[-1], points, fitted[:-1]).softmax(1).float()
    return probs


def minimise(features: Tensor, target: Tensor) -> Tensor:
    """W where the loss is least.

    No curvature of the loss is larger than H = X^T M X / 2 + penalty, with M the rows' weights (Boehning 1992). So
    L-BFGS on U = L^T W with H = L L^T needs some tens of steps, where on W it would need thousands.
    """
    x = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], 1)
    mass = target.sum(1, keepdim=True)
    penalty = torch.full((x.shape[1],), STRENGTH, dtype=torch.float64)
    penalty[-1] = 0.0
    bound = x.T @ (mass * x) / 2
    bound.diagonal().add_(penalty.clamp_min(1e-9 * float(mass.sum())))
    root = torch.linalg.cholesky(bound)
    unknown = torch.nn.Parameter(torch.zeros(x.shape[1], target.shape[1], dtype=torch.float64), requires_grad=False)
    optimiser = torch.optim.LBFGS(
        [unknown], max_iter=300, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def weights() -> Tensor:
        solved: Tensor = torch.linalg.solve_triangular(root.T, unknown, upper=True)
        return solved

    def loss() -> Tensor:
        w = weights()
        logs = (x @ w).log_softmax(1)
        gradient = x.T @ (mass * logs.exp() - target) + penalty.unsqueeze(1) * w
        unknown.grad = torch.linalg.solve_triangular(root, gradient, upper=False).contiguous()
        return (penalty.unsqueeze(1) * w.square()).sum() / 2 - (target * logs).sum()

    optimiser.step(loss)
    return weights().detach()
