"""A companion of a client's network: a softmax model on public features.

With few records a linear model on good fixed features knows more than a network trained from nothing. The features phi
are those of `privacy.mechanism = "dp_teacher"`, fitted on the alignment set (AD) alone, so all clients have the same:
wavelet scattering (Mallat 2012) for images, random Fourier features (Rahimi and Recht 2007) for tables. It minimises

    sum over own records of CE(y, phi W + b) + weight * n * mean over AD of CE(target, phi W + b) + strength |W|^2 / 2

- `taught` is what a client's own records alone teach it, about the classes that it holds: it speaks for the client.
- `companion` also learns from the consensus, with the same targets as the network: it predicts beside the network.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.bayes import Prediction, entropy
from fedbnn.method import Client
from fedbnn.privacy.public import Public, public
from fedbnn.randomness import Stream, repeatable

Floats = NDArray[np.float64]

DIMENSIONS = 200
STRENGTH = 1.0  # of the penalty |W|^2 / 2, not on the bias, with features scaled to a mean deviation of one
IMPOSSIBLE = 1e-12  # the probability whose logarithm stands for a class that nobody named
CONSENSUS_WEIGHT = 3.0  # of the consensus against the client's own records


def taught(client: Client) -> Tensor:
    """Class probabilities on the alignment set, zero for classes that the client does not hold."""
    found, own = _public(client), one_hot(client.train.y.cpu(), client.classes).double()
    features = _scaled(found, found.features(client.train.x.cpu()))
    return _probabilities(features, own, _scaled(found, found.phi)).to(client.device)


def companion(client: Client, heard: Tensor | None, x: Tensor) -> Prediction:
    """Its prediction for x, having learned from the client's records and from `heard`, targets on the alignment set.

    Rows of targets need not be normalised: their sum is the point's weight.
    """
    found, target = _public(client), one_hot(client.train.y.cpu(), client.classes).double()
    features = _scaled(found, found.features(client.train.x.cpu()))
    if heard is not None:
        features = torch.cat([features, _scaled(found, found.phi)])
        target = torch.cat([target, heard.cpu().double() * (CONSENSUS_WEIGHT * len(target) / len(heard))])
    probs = _probabilities(features, target, _scaled(found, found.features(x.cpu()))).to(x.device)
    return Prediction(probs, probs.clamp_min(IMPOSSIBLE).log(), entropy(probs))


def _probabilities(features: Tensor, target: Tensor, points: Tensor) -> Tensor:
    """Fitted to these rows and asked about these points; a class that no row names has probability zero."""
    named = target.sum(0) > 0  # the others' bias would go to minus infinity
    probs = torch.zeros(len(points), len(named))
    with repeatable(Stream(("softmax",))):  # one thread: the same bits everywhere
        probs[:, named] = _logits(points, fit_softmax(features, target[:, named])).softmax(1).float()
    return probs


def fit_softmax(features: Tensor, target: Tensor) -> Tensor:
    """W with the bias as its last row, by L-BFGS from zero, in double precision."""
    shape = (features.shape[1] + 1, target.shape[1])
    mass = target.sum(1, keepdim=True)

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights = torch.from_numpy(flat).view(shape)
        logs = _logits(features, weights).log_softmax(1)
        error = mass * logs.exp() - target
        gradient = torch.cat([features.T @ error + STRENGTH * weights[:-1], error.sum(0, keepdim=True)])
        total = STRENGTH * weights[:-1].square().sum() / 2 - (target * logs).sum()
        return float(total), gradient.flatten().numpy()

    options = {"maxiter": 1000, "maxfun": 2000, "gtol": 1e-6, "ftol": 1e-13}
    found = minimize(loss, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x).view(shape)


def _logits(features: Tensor, weights: Tensor) -> Tensor:
    return torch.addmm(weights[-1], features, weights[:-1])


def _scaled(found: Public, features: Tensor) -> Tensor:
    return (features / found.phi.std(0, correction=0).mean().clamp_min(1e-12)).double()


def _public(client: Client) -> Public:
    return public(client.alignment.cpu(), client.privacy.features, DIMENSIONS)
