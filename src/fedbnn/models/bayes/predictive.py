"""The predictive distribution of a Bayesian network, and how unsure it is and why.

For weight draws w_1..w_K:  p(y | x) = 1/K sum_k softmax(f(x; w_k))
total uncertainty     H[p(y | x)]                        entropy of the mean
aleatoric             1/K sum_k H[softmax(f(x; w_k))]    mean of the entropies: noise in the data itself
epistemic             total - aleatoric >= 0             disagreement of the draws: what more data would settle
(Depeweg et al. 2018; the epistemic part is the mutual information of label and weights)

Under another prior over labels (Saerens, Latinne, Decaestecker 2002), for each draw, whatever x looks like in a class:

    p(y | x, w_k, asked)  is proportional to  p(y | x, w_k) * asked(y) / trained(y)

`fedbnn.models.label_prior` has the priors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedbnn.models.bayes.gaussian import Gaussian
from fedbnn.models.network import FlatNetwork

_CACHE_FRIENDLY = 2**15  # numbers in a batch of records whose activations stay in a core's cache
_IMPOSSIBLE = 1e-12  # the probability whose logarithm stands for a class that cannot be
_BUSY = 2**21  # numbers in a batch of records that keep a GPU busy


@dataclass(frozen=True)
class Prediction:
    """Class probabilities for n records with the entropy (in nats) split in two.

    Attributes:
        probs: n x classes.
        logits: n x classes, means over the draws.
        aleatoric: n.
        draws: K x n x classes, the class probabilities of every weight draw, each as likely as the others.
        prior: how likely each class was taken to be before its record was seen; None where nobody said.

    """

    probs: Tensor
    logits: Tensor
    aleatoric: Tensor
    draws: Tensor
    prior: Tensor | None = None

    @classmethod
    def of(cls, probs: Tensor, aleatoric: Tensor) -> "Prediction":
        """Of a model that gives probabilities: its logits are their logarithms, finite also where one is zero.

        They count as its only draw. Where `aleatoric` is less than their entropy, the rest is epistemic.
        """
        return cls(probs, probs.clamp_min(_IMPOSSIBLE).log(), aleatoric, probs[None])

    @classmethod
    def from_draws(cls, draws: Tensor) -> "Prediction":
        """Of class probabilities of equally likely draws."""
        logs = draws.clamp_min(_IMPOSSIBLE).log()
        return cls(draws.mean(0), logs.mean(0), entropy(draws).mean(0), draws)

    def to(self, device: torch.device | str) -> "Prediction":
        """The same on another device; the prior stays on the CPU, where it is used."""
        probs, logits, aleatoric, draws = (
            part.to(device) for part in (self.probs, self.logits, self.aleatoric, self.draws)
        )
        return Prediction(probs, logits, aleatoric, draws, self.prior)

    def under(self, ratio: Tensor, prior: Tensor | None = None) -> "Prediction":
        """The same under a prior over labels that is `ratio` (of each class, >= 0) times the one that it stands under.

        A draw that thinks only classes possible that the new prior excludes knows nothing of the others: what is left
        of it is the prior itself. Without `prior`, which is then noted as well, that is the ratio's shape.
        """
        largest = ratio.max()
        if not (bool(ratio.isfinite().all()) and float(ratio.min()) >= 0 and float(largest) > 0):
            raise ValueError(f"a ratio of priors is finite, >= 0 and not all zero, not {ratio.tolist()}")
        if bool((ratio == largest).all()):
            return replace(self, prior=prior)
        alone = ratio if prior is None else prior
        ratio, alone, largest = (part.to(self.draws) for part in (ratio, alone / alone.sum(), largest))
        joint = self.draws * (ratio / largest)
        mass = joint.sum(2, keepdim=True)
        draws = torch.where(mass == 0, alone, joint / mass)
        # Of draws, `aleatoric` is their mean entropy. Where a model integrates over more than it hands out as draws,
        # it is less: that share of the entropy stays what it was.
        within = entropy(self.draws).mean(0)
        share = torch.where(within > 0, self.aleatoric / within, 1).clamp_max(1)
        logits = self.logits + ratio.clamp_min(_IMPOSSIBLE).log()
        return Prediction(draws.mean(0), logits, share * entropy(draws).mean(0), draws, prior)

    @property
    def total(self) -> Tensor:
        return entropy(self.probs)

    @property
    def epistemic(self) -> Tensor:
        return (self.total - self.aleatoric).clamp_min(0)

    @property
    def finite(self) -> bool:
        return bool(self.probs.isfinite().all())

    @property
    def labels(self) -> Tensor:
        return self.probs.argmax(1)


def entropy(probs: Tensor) -> Tensor:
    """H[p] = - sum_c p_c log p_c in nats, with 0 log 0 = 0; classes come last."""
    return -torch.xlogy(probs, probs).sum(-1)


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
    each = []
    for weights in draws:
        one = logits_of(network, weights, x)
        soft = one.softmax(1)
        logits, probs, aleatoric = logits + one, probs + soft, aleatoric + entropy(soft)
        each.append(soft)
    count = len(each)
    return Prediction(probs / count, logits / count, aleatoric / count, torch.stack(each))


def predict(network: FlatNetwork, posterior: Gaussian, x: Tensor, draws: int, generator: torch.Generator) -> Prediction:
    """Monte Carlo predictive distribution with `draws` weight draws."""
    return average(network, weight_draws(posterior, draws, generator), x)
