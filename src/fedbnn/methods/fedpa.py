"""FedPA (Al-Shedivat, Gillenwater, Xing, Rostamizadeh 2021): posterior averaging, with samples drawn by SGD.

The mode of a product of the clients' Gaussian posteriors N(mu_i, Sigma_i) is where sum_i a_i Sigma_i^-1 (w - mu_i) = 0.
The server goes there by steps:

    delta_i = Sigma_i^-1 (w - mu_i),    w <- w - beta sum_i a_i delta_i,    a_i = n_i / sum n

Client i runs SGD of constant step size from w. After a burn-in, the mean of the iterates of each of l windows is one
sample x_t of its posterior (iterate-averaged stochastic gradient, IASG). Their covariance S is shrunk,

    Sigma = rho_l I + (1 - rho_l) S,    rho_l = 1 / (1 + (l - 1) rho),

which is rho_l times I plus rank-one terms, so that delta needs no matrix but l^2 products of vectors (`delta`):

    u_t = x_t - mean(x_1..x_{t-1}),    g_t = rho (t - 1) / t,    v_t = (I + sum_{k<t} g_k u_k u_k^T)^-1 u_t
    d_t = d_{t-1} - (1 + g_t (t u_t^T d_{t-1} - u_t^T v_t) / (1 + g_t u_t^T v_t)) v_t / t,    delta = d_l / rho_l

With rho = 0 or one sample delta is w - mu: FedAvg. In the first `burn_in_rounds` rounds clients send the weights that
SGD reached, as FedAvg does. What a client sends is w - delta_i, of which the server takes the mean. Scored are w
(global) and a client's mu (fine-tuned). Unlike the paper, samples share the local epochs, in windows of equal length,
and the server makes plain steps. Clients use SGD, not Adam: the samples are its iterates.
"""

from collections.abc import Iterable, Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.averaging import Relaxed
from fedbnn.methods.point import Point, PointModel
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records


def delta(start: Tensor, samples: Tensor, rho: float) -> Tensor:
    """Sigma^-1 (start - mean of the samples), for samples x weights, with the shrunk covariance of the samples.

    In double precision and so on the CPU: not every device has it.
    """
    exact = samples.cpu().double()
    mean = exact[0]
    found = start.cpu().double() - mean
    earlier: list[tuple[Tensor, Tensor]] = []  # v_k, and g_k v_k / (1 + g_k u_k^T v_k)
    for t, sample in enumerate(exact[1:], 2):
        u = sample - mean
        v = u.clone()
        for v_k, scaled in earlier:
            v.sub_(scaled * (v_k @ u))
        g, uv = rho * (t - 1) / t, u @ v
        earlier.append((v, v * (g / (1 + g * uv))))
        found = found - (1 + g * (t * (u @ found) - uv) / (1 + g * uv)) * v / t
        mean = mean + u / t
    return (found * (1 + (len(samples) - 1) * rho)).to(start.dtype).to(start.device)


def iterate_averages(
    network: FlatNetwork,
    start: Tensor,
    batches: Iterable[Records],
    *,
    burn_in: int,
    window: int,
    learning_rate: float,
    momentum: float,
) -> tuple[Tensor, Tensor, float]:
    """Means of the SGD iterates of each window, windows x weights; the last iterate and the last minibatch's loss."""
    network.train()
    network.weights.copy_(start)
    parameter = torch.nn.Parameter(network.weights, requires_grad=False)
    parameter.grad = network.gradient
    optimiser = torch.optim.SGD([parameter], lr=learning_rate, momentum=momentum)
    sums: list[Tensor] = []
    loss = torch.zeros(())
    for step, batch in enumerate(batches):
        network.gradient.zero_()
        loss = batch.loss(network(batch.x))
        loss.backward()
        optimiser.step()
        if step >= burn_in:
            if (step - burn_in) % window == 0:
                sums.append(torch.zeros_like(start))
            sums[-1].add_(network.weights)
    return torch.stack(sums) / window, network.weights.clone(), float(loss.detach())


@settings
class FedPA(PointModel, Relaxed[Point]):
    """Averaging of posteriors, whose curvature clients find in the iterates of SGD."""

    name = "fedpa"
    summary = "steps towards the mode of a product of the clients' posteriors, sampled by SGD"
    regression = True

    learning_rate: float = Field(default=0.01, gt=0, description="step size of SGD in local training")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of SGD in local training")
    samples: int = Field(default=5, ge=1, description="l, posterior samples in a round, fewer where steps are fewer")
    shrinkage: float = Field(
        default=0.01, ge=0, description="rho, weight of the samples' covariance against the identity; 0: none of it"
    )
    burn_in: float = Field(default=0.2, ge=0, lt=1, description="share of the local steps before the first sample")
    burn_in_rounds: int = Field(
        default=1, ge=0, description="rounds of FedAvg at the start, the warm-up being the first"
    )

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        start, passes = message.arrays["weights"], client.training.passes(round_number)
        total = passes * -(-len(client.train) // client.training.batch_size)
        if total == 0:
            return Update(Point(start.clone()), self.upload(start, client), {"loss": 0.0})
        asked = max(total - int(self.burn_in * total), 1)
        window = max(asked // self.samples, 1)
        burn_in = total - window * min(self.samples, asked)
        samples, last, loss = iterate_averages(
            client.network,
            start,
            local_batches(client, passes, rng),
            burn_in=burn_in,
            window=window,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
        )
        if round_number < self.burn_in_rounds:
            return Update(Point(last), self.upload(last, client), {"loss": loss})
        step = delta(start, samples, self.shrinkage)
        info = {"loss": loss, "step": float(step.norm()), "spread": float(samples.std(0, correction=0).norm())}
        return Update(Point(samples.mean(0)), self.upload(start - step, client), info)

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"global": Point(message.arrays["weights"]), "fine_tuned": state}
