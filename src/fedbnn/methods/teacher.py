"""A companion of a client's network: a softmax model on public features.

With few records a linear model on good fixed features can know more than a network trained from nothing. The features
phi are those of `privacy.mechanism = "dp_teacher"`, fitted on the alignment set (AD) alone, so all clients have the
same: wavelet scattering (Mallat 2012) for images, random Fourier features (Rahimi and Recht 2007) for tables. It
minimises

    sum over own records of CE(y, phi W + b) + weight * n * mean over AD of CE(target, phi W + b) + strength |W|^2 / 2

- `taught` is what a client's own records alone teach it, about the classes that it holds: it speaks for the client.
- `companion` also learns from the consensus, with the same targets as the network: it predicts beside the network.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.features.public import DIMENSIONS, Public, public
from fedbnn.federation.method import Client
from fedbnn.models.bayes import Prediction, entropy

STRENGTH = 1.0  # of the penalty |W|^2 / 2, not on the bias, with features scaled to a mean deviation of one
CONSENSUS_WEIGHT = 3.0  # of the consensus against the client's own records


def taught(client: Client) -> Tensor:
    """Class probabilities on the alignment set, zero for classes that the client does not hold."""
    found, own = _public(client), one_hot(client.train.y.cpu(), client.classes).double()
    features = found.scaled(client.train.x.cpu()).double()
    return _probabilities(features, own, (found.phi / found.spread).double()).to(client.device)


def companion(client: Client, heard: Tensor | None, x: Tensor) -> Prediction:
    """Its prediction for x, having learned from the client's records and from `heard`, targets on the alignment set.

    Rows of targets need not be normalised: their sum is the point's weight.
    """
    found, target = _public(client), one_hot(client.train.y.cpu(), client.classes).double()
    features = found.scaled(client.train.x.cpu()).double()
    if heard is not None:
        features = torch.cat([features, (found.phi / found.spread).double()])
        target = torch.cat([target, heard.cpu().double() * (CONSENSUS_WEIGHT * len(target) / len(heard))])
    probs = _probabilities(features, target, found.scaled(x.cpu()).double()).to(x.device)
    return Prediction.of(probs, entropy(probs))


def _probabilities(features: Tensor, target: Tensor, points: Tensor) -> Tensor:
    """Fitted to these rows and asked about these points; a class that no row names has probability zero."""
    named = target.sum(0) > 0  # the others' bias would go to minus infinity
    probs = torch.zeros(len(points), len(named))
    with repeatable(Stream(("softmax",))):  # one thread: the same bits everywhere
        probs[:, named] = _logits(points, fit_softmax(features, target[:, named])).softmax(1).float()
    return probs


def fit_softmax(features: Tensor, target: Tensor) -> Tensor:
    """W with the bias as its last row, in double precision.

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
        found: Tensor = torch.linalg.solve_triangular(root.T, unknown, upper=True)
        return found

    def loss() -> Tensor:
        w = weights()
        logs = (x @ w).log_softmax(1)
        gradient = x.T @ (mass * logs.exp() - target) + penalty.unsqueeze(1) * w
        unknown.grad = torch.linalg.solve_triangular(root, gradient, upper=False).contiguous()
        return (penalty.unsqueeze(1) * w.square()).sum() / 2 - (target * logs).sum()

    optimiser.step(loss)
    return weights().detach()


def _logits(features: Tensor, weights: Tensor) -> Tensor:
    return torch.addmm(weights[-1], features, weights[:-1])


def _public(client: Client) -> Public:
    return public(client.alignment.cpu(), client.privacy.features, DIMENSIONS)
