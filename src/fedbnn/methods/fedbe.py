"""FedBE (Chen, Chao 2021): a Gaussian over the clients' weights gives more members for the ensemble that is distilled.

    mean = sum_i a_i w_i,    var = sum_i a_i (w_i - mean)^2,    a_i = n_i / sum n,    of each weight on its own
    w^(m) ~ N(mean, var),  m = 1..M
    target(x) = mean of softmax f(x; w) over w in {mean} + {w_i} + {w^(m)}
    student = argmin KL[target || softmax f] over AD, from the mean, its weights averaged along the way (SWA)

Clients take the student, train it on their own records, and send the weights back. Scored are the student (global) and
the client's weights after local training (fine-tuned). The paper's SWA has a step size that goes up and down and
collects weights at its low points; ours has one step size and averages the weights after each of the last steps, the
share `averaged` of all. As in FedDF, a student that is no nearer to the target on AD than the mean is left at the mean.
"""

from collections.abc import Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.methods.averaging import refuse_mixed, shares
from fedbnn.methods.feddf import FedDF, Students
from fedbnn.models.bayes import logits_of
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, fit_point

_IMPOSSIBLE = 1e-30  # the probability whose logarithm stands for a class that no member thinks possible


def moments(weights: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each weight over clients; arguments are clients x weights, and their shares."""
    each = powers[:, None]
    mean = (each * weights).sum(0)
    return mean, (each * (weights - mean).square()).sum(0).sqrt()


@settings
class FedBE(FedDF):
    """Distillation of a Bayesian ensemble at the server."""

    name = "fedbe"
    summary = "the server distils clients and draws from a Gaussian over their weights into one student"
    one_architecture = True

    draws: int = Field(default=10, ge=0, description="M, weight vectors drawn from the Gaussian over clients")
    averaged: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the steps of distillation, the last ones, whose weights are averaged; 0: the last alone",
    )

    def server_init(self, roster: Roster) -> Students:
        refuse_mixed(roster, self.name)
        return super().server_init(roster)

    def server_update(self, state: Students, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Students:
        # Who says that it has no records has no share; if nobody has any there is no Gaussian.
        counted = {client: replies[client] for client, share in shares(replies).items() if share > 0}
        return super().server_update(state, counted, roster, rng)

    def ensemble(self, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Tensor:
        """Log of the mean probabilities of all members."""
        powers = shares(replies)
        weights = torch.stack([replies[client].arrays["weights"] for client in powers])
        mean, sd = moments(weights, weights.new_tensor(list(powers.values())))
        generator = rng.child("draws").torch()
        drawn = (mean + sd * torch.empty_like(mean).normal_(generator=generator) for _ in range(self.draws))
        members = (member for group in ((mean,), weights, drawn) for member in group)
        total = sum(logits_of(roster.network(0), member, roster.alignment).double().softmax(1) for member in members)
        assert isinstance(total, Tensor)
        return (total / (1 + len(weights) + self.draws)).clamp_min(_IMPOSSIBLE).log().float()

    def student(self, network: FlatNetwork, start: Tensor, batches: Iterator[Records]) -> Tensor:
        """The average of the weights after the last steps."""
        last = max(1, round(self.averaged * self.distill_steps))
        seen, total = 0, torch.zeros_like(start, dtype=torch.float64)

        def collect(weights: Tensor) -> None:
            nonlocal seen
            seen += 1
            if seen > self.distill_steps - last:
                total.add_(weights)

        rate = self.distill_learning_rate
        fit_point(network, start, batches, learning_rate=rate, weight_decay=0.0, visit=collect)
        return (total / last).float() if seen else start
