"""Bayes by Backprop (Blundell et al. 2015) on a flat network, with the Gaussian's gradient written out.

For w = mu + sigma * eps, sigma = softplus(rho), and g = d loss / d w from one backward pass,

    d/d mu  = g                    + lambda * (mu - m_0) / s_0^2
    d/d rho = (g * eps             + lambda * (sigma - s_0) (1 + s_0 / sigma) / s_0^2) * sigmoid(rho)

where lambda = kl_weight / n weighs KL[q || N(m_0, s_0^2)] against the mean loss of a minibatch. Nothing but the
network itself is seen by autograd, so a step costs one forward, one backward and a few passes over flat buffers.
The last factor is sigma / s_0^2 - 1 / sigma, written so that it is exactly zero at sigma = s_0: Adam would make full
steps of what rounding leaves there.

A weight without spread (sigma = 0) has no KL term and keeps sigma = 0; Adam's step for it is made `rest_rate` times as
long, which is that part of the learning rate.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedbnn.models.bayes.gaussian import Gaussian
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records


@dataclass(frozen=True)
class Anchor:
    """What the KL term pulls towards: the prior, and lambda = kl_weight / number of records."""

    prior: Gaussian
    strength: float


class VariationalStep:
    """One gradient step on `theta` = [mu | rho]; buffers are made once and reused for every step.

    Public because the benchmark times exactly this.
    """

    def __init__(
        self,
        network: FlatNetwork,
        start: Gaussian,
        anchor: Anchor | None,
        learning_rate: float,
        generator: torch.Generator,
        eps: float = 1e-8,
        rest_rate: float = 0.0,
    ) -> None:
        size = network.size
        self.network = network
        self.generator = generator
        self.theta = torch.nn.Parameter(start.theta.clone(), requires_grad=False)
        self.theta.grad = torch.empty_like(self.theta)
        self.mu, self.rho = self.theta.data[:size], self.theta.data[size:]
        self.mu_grad, self.rho_grad = self.theta.grad[:size], self.theta.grad[size:]
        self.noise, self.scratch = torch.empty_like(self.mu), torch.empty_like(self.mu)
        self.optimiser = torch.optim.Adam([self.theta], lr=learning_rate, eps=eps, fused=True)
        known = functional.softplus(self.rho) == 0
        self.known = known if bool(known.any()) else None
        self.rest_rate = rest_rate
        self.strength = 0.0
        if anchor:
            self.hold(anchor)

    def hold(self, anchor: Anchor) -> None:
        """From the next step on, the KL term pulls towards this anchor."""
        self.strength = anchor.strength
        self.prior_mean, self.prior_sd = anchor.prior.mean, anchor.prior.sd
        self.prior_precision = anchor.strength / self.prior_sd.square()  # lambda / s_0^2

    def __call__(self, batch: Records) -> Tensor:
        """One weight draw, one pass forward and back, one Adam step; the minibatch's mean cross-entropy."""
        network = self.network
        self.noise.normal_(generator=self.generator)
        self.sigma = functional.softplus(self.rho)
        torch.addcmul(self.mu, self.sigma, self.noise, out=network.weights)
        network.gradient.zero_()
        loss = batch.loss(network(batch.x))
        loss.backward()
        self._gaussian_gradient()
        if self.known is None:
            self.optimiser.step()
        else:
            self._step_beside(self.known)
        return loss.detach()

    def _step_beside(self, known: Tensor) -> None:
        """A step where some weights have no spread."""
        torch.where(known, self.network.gradient, self.mu_grad, out=self.mu_grad)
        self.rho_grad.masked_fill_(known, 0.0)  # also what a division by zero has left there
        self.scratch.copy_(self.mu)
        self.optimiser.step()
        self.mu.copy_(torch.where(known, self.scratch.lerp_(self.mu, self.rest_rate), self.mu))

    def _gaussian_gradient(self) -> None:
        g, scratch = self.network.gradient, self.scratch
        torch.mul(g, self.noise, out=self.rho_grad)
        if self.strength:
            torch.sub(self.mu, self.prior_mean, out=scratch)
            torch.addcmul(g, scratch, self.prior_precision, out=self.mu_grad)
            torch.div(self.prior_sd, self.sigma, out=scratch).add_(1)
            scratch.mul_(self.sigma.sub_(self.prior_sd))  # sigma is drawn anew in the next step
            self.rho_grad.addcmul_(scratch, self.prior_precision)
        else:
            self.mu_grad.copy_(g)
        torch.sigmoid(self.rho, out=scratch)
        self.rho_grad.mul_(scratch)


def fit(
    network: FlatNetwork,
    start: Gaussian,
    batches: Iterable[Records],
    *,
    learning_rate: float,
    generator: torch.Generator,
    anchor: Anchor | None = None,
    rest_rate: float = 0.0,
) -> tuple[Gaussian, float]:
    """Run the step over the batches; the Gaussian reached and the last minibatch's cross-entropy."""
    network.train()
    step = VariationalStep(network, start, anchor, learning_rate, generator, rest_rate=rest_rate)
    loss = torch.zeros(())
    for batch in batches:
        loss = step(batch)
    return Gaussian(step.theta.data), float(loss)
