"""FedBNN's softmax head as one would write it down: the objective, and Newton's method on autograd's Hessian.

Nothing of `fedbnn.models.softmax` or `fedbnn.methods.head` is used here.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

GRIP = 8.0


def newton(loss: Callable[[Tensor], Tensor], start: Tensor, most_steps: int = 100) -> Tensor:
    """Where a smooth convex function is least, by Newton's steps, halved until they go down far enough.

    Along directions in which the loss is flat nothing moves.
    """
    at = start.detach().double()
    size = at.numel()
    for _ in range(most_steps):
        gradient = torch.func.grad(loss)(at)
        hessian = torch.func.jacrev(torch.func.grad(loss))(at).reshape(size, size)
        step = -(torch.linalg.pinv(hessian, rtol=1e-13, hermitian=True) @ gradient.flatten()).view_as(at)
        slope, before, length = float((gradient * step).sum()), float(loss(at)), 1.0
        if slope > -1e-22 * (1 + abs(before)):
            break
        while length > 1e-9 and not float(loss(at + length * step)) <= before + 1e-4 * length * slope:
            length /= 2
        at = at + length * step
    return at


def objective(
    weights: Tensor,
    z: Tensor,
    target: Tensor,
    offset: Tensor,
    penalty: float,
    points: Tensor | None = None,
    v: Tensor | None = None,
    strength: float = 0.0,
) -> Tensor:
    """Sum of cross-entropies + penalty |W|^2 / 2 + strength / 2 mean over points |z W + b - v|^2.

    The bias has a thousandth of the penalty.
    """
    total = functional.cross_entropy(z @ weights[:-1] + weights[-1] + offset, target, reduction="sum")
    total = total + penalty / 2 * (weights[:-1].square().sum() + 1e-3 * weights[-1].square().sum())
    if points is not None and v is not None:
        total = total + strength / 2 * (points @ weights[:-1] + weights[-1] - v).square().sum(1).mean()
    return total


def least(z: Tensor, target: Tensor, offset: Tensor, penalty: float, *sayings: Tensor | float) -> Tensor:
    """The weights where the objective is least; those of features that are always zero are zero."""
    used = z.abs().amax(0) > 0
    rest: tuple[Tensor | float, ...] = ()
    if sayings:
        points, v, strength = sayings
        assert isinstance(points, Tensor)
        used |= points.abs().amax(0) > 0
        rest = (points[:, used], v, strength)
    start = torch.zeros(int(used.sum()) + 1, target.shape[1], dtype=torch.float64)
    found = newton(lambda w: objective(w, z[:, used], target, offset, penalty, *rest), start)  # type: ignore[arg-type]
    weights = torch.zeros(len(used) + 1, target.shape[1], dtype=torch.float64)
    weights[torch.cat([used, torch.tensor([True])])] = found
    return weights


def middle(outputs: Tensor) -> Tensor:
    return outputs - outputs.mean(1, keepdim=True)


def own_shares(y: Tensor, classes: int) -> Tensor:
    counts = torch.tensor([int((y == c).sum()) for c in range(classes)], dtype=torch.float64)
    return (counts + 0.5) / (len(y) + classes / 2)


def spoken(
    z: Tensor, y: Tensor, points: Tensor, classes: int, clients: int, sd: float, said: tuple[Tensor, Tensor] | None
) -> Tensor:
    """What a client sends: of its features and labels, and of (phi_bar, what it sent last), if it has heard any."""
    nothing = torch.zeros(len(points), classes, dtype=torch.float64)
    mean, site = nothing, nothing
    if said is not None:
        mean = middle(said[0].double())
        site = middle(said[1].double()) - mean
    penalty = points.shape[1] / sd**2 / clients
    w = least(z, functional.one_hot(y, classes).double(), nothing[0], penalty, points, mean - site, GRIP)
    return middle(points @ w[:-1] + w[-1] + site)


def fitted(
    z: Tensor, y: Tensor, points: Tensor, classes: int, clients: int, sd: float, trust: float, phi_bar: Tensor | None
) -> Tensor:
    """W of the head that predicts."""
    target, offset = functional.one_hot(y, classes).double(), (classes * own_shares(y, classes)).log()
    penalty = points.shape[1] / sd**2
    if phi_bar is None:
        return least(z, target, offset, penalty)
    strength = trust * clients * len(y)
    return least(z, target, offset, 1e-3 * penalty, points, middle(phi_bar.double()), strength)
