"""Samples of a posterior over weights by stochastic gradient Langevin dynamics (SGLD; Welling, Teh 2011).

For n records, L the mean loss of a minibatch and the prior N(0, 1 / (n weight_decay)), one step is

    w <- w - rate / 2 grad(L + weight_decay / 2 ||w||^2) + sqrt(rate temperature / n) eps,    eps ~ N(0, 1),

which for small rates goes through weights as often as p(w | records)^(1 / temperature) says: the posterior itself at
temperature 1, its mode at 0. It is the step of size rate / n on the log posterior.
"""

import math
from collections.abc import Callable, Iterator

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.settings import settings
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Pull, Records, descend


@settings
class Langevin:
    """Settings and steps of a chain."""

    rate: float = Field(default=0.05, gt=0, description="step size of SGLD on the mean loss of a minibatch")
    weight_decay: float = Field(
        default=1e-4, ge=0, description="precision of the prior over weights, divided by the number of records"
    )
    temperature: float = Field(
        default=0.01,
        ge=0,
        description="of the posterior: 1 is the posterior itself, less is surer, 0 its mode; few records with many "
        "weights want far less than 1",
    )

    def walk(
        self,
        network: FlatNetwork,
        start: Tensor,
        batches: Iterator[Records],
        *,
        records: int,
        generator: torch.Generator,
        visit: Callable[[Tensor], object] | None = None,
    ) -> tuple[Tensor, float]:
        """Where the chain from `start` is after a step on each batch, and the last minibatch's loss.

        `visit` is shown the weights after every step, in a buffer that the next step overwrites.
        """
        spread, noise = math.sqrt(self.rate * self.temperature / records), torch.empty_like(start)

        def stir(weights: Tensor) -> None:
            weights.add_(noise.normal_(generator=generator), alpha=spread)
            if visit:
                visit(weights)

        prior = Pull(torch.zeros_like(start), self.weight_decay)
        weights, loss, _ = descend(network, start, batches, rate=self.rate / 2, pull=prior, visit=stir)
        return weights, loss
