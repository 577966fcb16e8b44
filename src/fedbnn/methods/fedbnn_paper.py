"""FedBNN as published: federated Bayesian neural networks with priors in function space (Makhija, Ghosh, Ho 2023).

One round of client i, with phi_bar the consensus on the alignment set (AD):

    target = gamma * phi_bar + (1 - gamma) * phi_i(AD)
    psi*   = argmin_psi E_{w ~ p(.; psi)} CE(softmax(target), f(AD; w))           the prior, in function space
    q*     = argmin_q   kl_weight * KL[q || p(.; psi*)] - E_q log p(records | w)   Bayes by Backprop
    send     phi_i(AD) = mean over weight draws from q*

What the paper leaves open is settled so: psi starts at the current posterior; in the KL no prior standard deviation
is below `prior_sd_floor` (a prior as narrow as the posterior drowns the data); q starts at psi*'s means with the
posterior's own standard deviations. What goes beyond the paper is `fedbnn.methods.fedbnn`; what protects phi_i on its
way out, `fedbnn.methods.mechanisms`.
"""

from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client
from fedbnn.methods.bayesian import BayesianTraining, Posterior
from fedbnn.methods.exchange import Exchange, ExchangeState
from fedbnn.models.bayes import Gaussian, kl_divergence, tune_prior
from fedbnn.models.regression import Answer


@dataclass(frozen=True)
class PaperState(ExchangeState, Posterior):
    """A client's posterior, and what its mechanism keeps."""


@settings
class FunctionSpacePrior:
    """Settings and steps of turning a consensus into a prior over a network's weights."""

    prior_steps: int = Field(default=100, ge=0, description="Adam steps on the prior's parameters psi in each round")
    prior_batch: int = Field(default=128, ge=1, description="alignment points in a minibatch of prior tuning")
    prior_learning_rate: float = Field(
        default=2e-3, gt=0, description="Adam's learning rate on psi; 1e-4 for schedules of a hundred rounds"
    )
    prior_sd_floor: float = Field(
        default=0.1, gt=0, description="smallest standard deviation of the tuned prior in the KL"
    )

    def tune_prior(self, q: Gaussian, target: Tensor, client: Client, rng: Stream) -> tuple[Gaussian, float]:
        """psi*, from the current posterior, and its last loss."""
        return tune_prior(
            client.network,
            q,
            client.taught(target),
            count=self.prior_steps,
            batch_size=self.prior_batch,
            learning_rate=self.prior_learning_rate,
            order=rng.child("prior order").torch(),
            noise=rng.child("prior weights").torch(),
            augment=client.training.augment,
            rest_rate=client.model.rest_rate,
        )


@settings
class FedBNNPaper(FunctionSpacePrior, BayesianTraining, Exchange[PaperState]):
    """Bayesian personal networks of any architecture, joined by a prior in function space."""

    name = "fedbnn_paper"
    partly_bayesian = True
    summary = "Bayesian networks of any architecture, joined by a prior in function space, as published"
    client_state = PaperState

    def client_init(self, client: Client) -> PaperState:
        return PaperState(self.initial_posterior(client).theta)

    def client_update(
        self, state: PaperState, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[PaperState]:
        if self.exchange_of(client, message) > 0:
            return self.replied(state, client, message, round_number, partial(self.phi, state.q, client, rng), {})
        q, prior, info = state.q, self.alone_prior(client), {}
        told, asked = self.told(client, message), self.asked(client, message)
        target = self.target(message, told, partial(self.phi, q, told, rng.child("own")))
        if target is not None:
            psi, info["prior_loss"] = self.tune_prior(q, target, told, rng)
            prior, q = psi.with_sd_at_least(self.prior_sd_floor), Gaussian(torch.cat([psi.mean, q.rho]))
        q, info["loss"] = self.train(q, prior, client, client.training.passes(round_number), rng)
        info |= {"kl": float(kl_divergence(q, prior)), "mean_sd": float(q.sd.mean())}
        new = PaperState(q.theta)
        phi = partial(self.phi, q, asked, rng.child("upload"))
        return self.replied(new, client, message, round_number, phi, info)

    def phi(self, q: Gaussian, client: Client, rng: Stream) -> Answer:
        """phi_i(AD) under q."""
        return self.outputs(q, client, client.alignment, rng)

    def predict(self, state: PaperState, client: Client, x: Tensor, rng: Stream) -> Answer:
        return self.outputs(state.q, client, x, rng)
