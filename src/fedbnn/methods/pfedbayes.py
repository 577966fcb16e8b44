"""pFedBayes (Zhang, Li, Li, Guo, Shao 2022): personal posteriors around an averaged distribution over weights.

Client i holds a personal q and, from each round's start, a localised copy w of the server's distribution v, all
mean-field Gaussians (mu, rho). R times, on a minibatch of b of its n records,

    K steps on q of   -(n / b) sum log p(y | x, q) + zeta KL[q || w],    w fixed,
    one step on w of   zeta KL[q || w],                                  q fixed.

It sends w; the server: v <- (1 - beta) v + beta mean_i w_i, on (mu, rho). q draws its weights with unit noise,
mu + softplus(rho) eps, eps ~ N(0, 1). Scored are q (personal) and v (global), by averaging softmax over draws.
"""

from collections.abc import Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Relaxed
from fedbnn.methods.bayesian import Posterior
from fedbnn.models.bayes import Anchor, Gaussian, VariationalStep, kl_divergence, weight_draws
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression import Answer
from fedbnn.models.training import Records, steps


class Follow:
    """Adam steps of w towards q: on KL[q || w] over w = (m, s), s = softplus(rho), whose gradient is

    d/dm = (m - m_q) / s^2,    d/drho = ((s - s_q) (s + s_q) - (m - m_q)^2) / s^3 sigmoid(rho),

    exactly zero at w = q.
    """

    def __init__(self, start: Gaussian, zeta: float, learning_rate: float) -> None:
        self.theta = torch.nn.Parameter(start.theta.clone(), requires_grad=False)
        self.theta.grad = torch.empty_like(self.theta)
        self.w = Gaussian(self.theta.data)
        self.gradient = Gaussian(self.theta.grad)  # seen as (mean, rho) as well
        self.zeta = zeta
        self.optimiser = torch.optim.Adam([self.theta], lr=learning_rate, fused=True)

    def __call__(self, q: Gaussian) -> None:
        s, s_q = self.w.sd, q.sd
        precision = s.square().reciprocal_()
        apart = self.w.mean - q.mean
        torch.mul(apart, precision, out=self.gradient.mean)
        torch.mul(s - s_q, s + s_q, out=self.gradient.rho)
        self.gradient.rho.sub_(apart.square_()).mul_(precision).div_(s).mul_(torch.sigmoid(self.w.rho))
        self.gradient.theta.mul_(self.zeta)
        self.optimiser.step()


def two_level(
    network: FlatNetwork,
    q: Gaussian,
    v: Gaussian,
    batches: Iterator[Records],
    *,
    records: int,
    inner_steps: int,
    zeta: float,
    learning_rate: float,
    generator: torch.Generator,
) -> tuple[Gaussian, Gaussian, float]:
    """q, w and the last minibatch's cross-entropy after going through the batches; w begins at v."""
    network.train()
    # Divided by n, the first objective is mean cross-entropy + (zeta / n) KL: the same for Adam, if eps is as well.
    step = VariationalStep(network, q, None, learning_rate, generator, eps=1e-8 / records)
    follow = Follow(v, zeta, learning_rate)
    loss = torch.zeros(())
    for batch in batches:
        step.hold(Anchor(follow.w, zeta / records))
        for _ in range(inner_steps):
            loss = step(batch)
        follow(Gaussian(step.theta.data))
    return Gaussian(step.theta.data), follow.w, float(loss)


@settings
class PFedBayes(Relaxed[Posterior]):
    """Personal posteriors whose prior is a localised copy of an averaged one."""

    name = "pfedbayes"
    summary = "personal posteriors around an averaged distribution over weights"
    client_state = Posterior
    by_records = False
    regression = True

    learning_rate: float = Field(default=1e-3, gt=0, description="Adam's learning rate, of q and of w")
    zeta: float = Field(default=10.0, gt=0, description="weight of KL[q || w] against the log-likelihood")
    iterations: int = Field(default=20, ge=1, description="R, minibatches in a round")
    inner_steps: int = Field(default=5, ge=1, description="K, steps of q on one minibatch")
    initial_rho: float = Field(default=-3.0, le=5, description="initial rho of every weight; 0.049 = softplus(-3)")
    mc_samples: int = Field(default=10, ge=1, description="weight draws for evaluation")

    def client_init(self, client: Client) -> Posterior:
        return Posterior(Gaussian.around(client.initial_weights(), self.initial_rho).theta)

    def client_update(
        self, state: Posterior, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Posterior]:
        v = Gaussian(message.arrays["weights"])
        # A personal network begun elsewhere would be far from every average of networks: the first round starts at v.
        start = v if round_number == 0 else state.q
        q, w, loss = two_level(
            client.network,
            start,
            v,
            steps(
                client.train,
                self.iterations,
                client.training.batch_size,
                rng.child("order").torch(),
                client.training.augment,
            ),
            records=len(client.train),
            inner_steps=self.inner_steps,
            zeta=self.zeta,
            learning_rate=self.learning_rate,
            generator=rng.child("weights").torch(),
        )
        info = {"loss": loss, "kl": float(kl_divergence(q, w)), "mean_sd": float(q.sd.mean())}
        return Update(Posterior(q.theta), self.upload(w.theta, client), info)

    def predict(self, state: Posterior, client: Client, x: Tensor, rng: Stream) -> Answer:
        return client.says(weight_draws(state.q, self.mc_samples, rng.child("predict").torch()), x)

    def scored(self, state: Posterior, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Posterior]:
        return {"personal": state, "global": Posterior(message.arrays["weights"])}

    def initial(self, roster: Roster) -> Tensor:
        return Gaussian.around(roster.initial_weights(0), self.initial_rho).theta

    def initial_size(self, roster: Roster) -> int:
        return 2 * roster.network(0).size
