"""A softmax model on public features, beside a client's network.

With few records a linear model on good fixed features can know more than a network trained from nothing. The features
phi are fitted on the alignment set (AD) alone, so all clients have the same: wavelet scattering (Mallat 2012) for
images, random Fourier features (Rahimi and Recht 2007) for tables (`fedbnn.features`). It minimises

    sum over own records of CE(y, phi W + b) + weight * n * mean over AD of CE(target, phi W + b) + strength |W|^2 / 2

- as a *teacher* it learns from the client's own records alone, and speaks for the client about the classes it holds;
- as a *companion* it also learns from the consensus, with the same targets as the network, and predicts beside it.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.features.public import DIMENSIONS, Public, public
from fedbnn.federation.method import Client
from fedbnn.models.bayes import Prediction, entropy
from fedbnn.models.softmax import fit_softmax, softmax_probabilities

CONSENSUS_WEIGHT = 3.0  # of the consensus against the client's own records


def teacher_outputs(client: Client) -> Tensor:
    """The teacher's class probabilities on the alignment set, zero for classes that the client does not hold."""
    public = _public(client)
    weights = fit_softmax(*_own_rows(client, public))
    return softmax_probabilities(weights, _alignment_rows(public)).to(client.device)


def fit_companion(client: Client, target: Tensor | None) -> Tensor:
    """The companion's W and b, from the client's records and targets on the alignment set, if there are any yet.

    Rows of targets need not be normalised: their sum is the point's weight.
    """
    public = _public(client)
    features, labels = _own_rows(client, public)
    if target is not None:
        features = torch.cat([features, _alignment_rows(public)])
        labels = torch.cat([labels, target.cpu().double() * (CONSENSUS_WEIGHT * len(labels) / len(target))])
    return fit_softmax(features, labels)


def companion_prediction(client: Client, weights: Tensor, x: Tensor) -> Prediction:
    probs = softmax_probabilities(weights.cpu(), _public(client).scaled(x.cpu()).double()).to(x.device)
    return Prediction.of(probs, entropy(probs))


def _own_rows(client: Client, public: Public) -> tuple[Tensor, Tensor]:
    """Features and one-hot labels of the client's records."""
    return public.scaled(client.train.x.cpu()).double(), one_hot(client.train.y.cpu(), client.classes).double()


def _alignment_rows(public: Public) -> Tensor:
    return (public.phi / public.spread).double()


def _public(client: Client) -> Public:
    return public(client.alignment.cpu(), client.privacy.features, DIMENSIONS)
