"""The predictive distribution of a Bayesian network, and how unsure it is and why.

For weight draws w_1..w_K:  p(y | x) = 1/K sum_k softmax(f(x; w_k))
total uncertainty     H[p(y | x)]                        entropy of the mean
aleatoric             1/K sum_k H[softmax(f(x; w_k))]    mean of the entropies: noise in the data itself
epistemic             total - aleatoric >= 0             disagreement of the draws: what more data would settle
(Depeweg et al. 2018; the epistemic part is the mutual information of label and weights)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn.models.bayes.gaussian import Gaussian
from fedbnn.models.network import FlatNetwork

_CACHE_FRIENDLY = 2**15  # numbers in a batch of records whose activations stay in a core's cache
_IMPOSSIBLE = 1e-12  # the probability whose logarithm stands for a class that cannot be
_BUSY = 2**21  # numbers in a batch of records that keep a GPU busy


@dataclass(frozen=True)
class Prediction:
    """Class probabilities for n records with the entropy (in nats) split in two, and the mean logits."""

    probs: Tensor
    logits: Tensor
    aleatoric: Tensor

    @classmethod
    def of(cls, probs: Tensor, aleatoric: Tensor) -> "Prediction":
        """Of a model that gives probabilities: its logits are their logarithms, finite also where one is zero."""
        return cls(probs, probs.clamp_min(_IMPOSSIBLE).log(), aleatoric)

    def to(self, device: torch.device | str) -> "Prediction":
        return Prediction(self.probs.to(device), self.logits.to(device), self.aleatoric.to(device))

    @property
    def total(self) -> Tensor:
        return entropy(self.probs)

    @property
    def epistemic(self) -> Tensor:
        return (self.total - self.aleatoric).clamp_min(0)

    @property
    def labels(self) -> Tensor:
        return self.probs.argmax(1)


def entropy(probs: Tensor) -> Tensor:
    """H[p] = - sum_c p_c log p_c in nats, with 0 log 0 = 0."""
    return -torch.xlogy(probs, probs).sum(1)


def weight_draws(posterior: Gaussian, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """`count` independent weight vectors from the posterior."""
    mean, sd = posterior.mean, posterior.sd
    for _ in range(count):
        noise = torch.empty_like(mean).normal_(generator=generator)
        yield noise.mul_(sd).add_(mean)


@torch.inference_mode()
def logits_of(network: FlatNetwork, weights: Tensor, x: Tensor) -> Tensor:
    """The network's outputs for every record of x at these weights."""
    network.module.eval()
    network.weights.copy_(weights)
    numbers = _CACHE_FRIENDLY if x.device.type == "cpu" else _BUSY
    batch = max(32, numbers // max(1, x[:1].numel()))
    return torch.cat([network(part) for part in x.split(batch)])


@torch.inference_mode()
def average(network: FlatNetwork, draws: Iterator[Tensor], x: Tensor) -> Prediction:
    """The predictive distribution over the given weight vectors (one vector: a plain network)."""
    logits, probs, aleatoric = x.new_zeros(3).unbind()
    count = 0
    for weights in draws:
        one = logits_of(network, weights, x)
        soft = one.softmax(1)
        logits, probs, aleatoric = logits + one, probs + soft, aleatoric + entropy(soft)
        count += 1
    return Prediction(probs / count, logits / count, aleatoric / count)


def mixture(one: Prediction, other: Prediction) -> Prediction:
    """Each model with probability 1/2: what they disagree about is epistemic too."""
    return Prediction(
        (one.probs + other.probs) / 2, (one.logits + other.logits) / 2, (one.aleatoric + other.aleatoric) / 2
    )


def predict(network: FlatNetwork, posterior: Gaussian, x: Tensor, draws: int, generator: torch.Generator) -> Prediction:
    """Monte Carlo predictive distribution with `draws` weight draws."""
    return average(network, weight_draws(posterior, draws, generator), x)
