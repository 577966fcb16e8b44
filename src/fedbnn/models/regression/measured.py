"""Records whose targets are real numbers, and the Gaussian likelihood by which networks learn from them.

A network's outputs o of a record are a Gaussian of its target:

    mean = o_0,    variance = FLOOR + softplus(o_1)         (Lakshminarayanan, Pritzel, Blundell 2017)

so that noise is learned, may differ from record to record, and cannot vanish. FLOOR is a hundredth of the target's
scale, squared: nothing finer can be told. The loss is the cross-entropy of a target N(a, b) and the network's N(m, v),

    E_{y ~ N(a, b)} [-log N(y; m, v)]  =  (log 2 pi v + ((m - a)^2 + b) / v) / 2  =  KL[N(a, b) || N(m, v)] + H[N(a, b)]

For a measured value, b = 0, it is the negative log-likelihood; for a consensus of peers, a Gaussian at each point of
the alignment set, it is the divergence from it but for a constant. So one loss serves the likelihood and the prior in
function space, as cross-entropy does in classification.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fedbnn.models.augmentation import Augment, augmented
from fedbnn.models.regression.scale import Scale
from fedbnn.models.training import Records, take_rows

OUTPUTS = 2  # of a network, for each record
FLOOR = 1e-4  # of a variance, in units of the target's scale, squared


def gaussian_of(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance, each n, of a network's outputs, n x 2."""
    mean, spread = outputs.unbind(1)
    return mean, FLOOR + functional.softplus(spread)


def gaussian_cross_entropy(target: Tensor, spread: Tensor | float, mean: Tensor, variance: Tensor) -> Tensor:
    """E_{y ~ N(target, spread)} [-log N(y; mean, variance)] of each record, in nats."""
    return 0.5 * ((2 * math.pi * variance).log() + ((mean - target).square() + spread) / variance)


@dataclass(frozen=True)
class Measured(Records):
    """Inputs with a real number each, or with a Gaussian: y is then its mean, `spread` its variance.

    Attributes:
        weight: how much each record counts in the mean loss; None: all alike.

    """

    spread: Tensor | None = None
    weight: Tensor | None = None

    @classmethod
    def of_gaussians(cls, x: Tensor, gaussians: Tensor) -> "Measured":
        """With a mean and a log variance for each record, n x 2."""
        mean, log_variance = gaussians.unbind(1)
        return cls(x, mean, spread=log_variance.exp())

    def to(self, device: torch.device) -> "Measured":
        return self._with(self.x.to(device), *(None if one is None else one.to(device) for one in self._numbers))

    def take(self, index: Tensor) -> "Measured":
        return self._with(take_rows(self.x, index), *(None if one is None else one[index] for one in self._numbers))

    def varied(self, how: Augment, generator: torch.Generator) -> "Measured":
        return self if how == "none" else replace(self, x=augmented(self.x, how, generator))

    def loss(self, logits: Tensor) -> Tensor:
        """The mean negative log-likelihood of a network's outputs for these inputs, or the mean cross-entropy."""
        mean, variance = gaussian_of(logits)
        each = gaussian_cross_entropy(self.y, 0.0 if self.spread is None else self.spread, mean, variance)
        return (each if self.weight is None else each * self.weight).mean()

    def beside(self, other: "Measured", weight: float) -> "Measured":
        """One minibatch whose mean loss is that of this one plus `weight` times that of `other`."""
        rows = len(self) + len(other)
        parts = ((self, rows / len(self)), (other, weight * rows / len(other)))
        spreads = [one.y.new_zeros(len(one)) if one.spread is None else one.spread for one, _ in parts]
        weights = [torch.full_like(one.y, counts) for one, counts in parts]
        return Measured(
            torch.cat([self.x, other.x]),
            torch.cat([self.y, other.y]),
            spread=torch.cat(spreads),
            weight=torch.cat(weights),
        )

    @property
    def _numbers(self) -> tuple[Tensor | None, ...]:
        return self.y, self.spread, self.weight

    def _with(self, x: Tensor, y: Tensor | None, spread: Tensor | None, weight: Tensor | None) -> "Measured":
        assert y is not None
        return Measured(x, y, spread=spread, weight=weight)


def records_of(x: Tensor, y: Tensor, scale: Scale | None = None) -> Records:
    """Records with labels, or with real numbers; these are standardised where a scale is given."""
    if not y.is_floating_point():
        return Records(x, y)
    return Measured(x, y if scale is None else scale.standard(y))
