"""FedBNN: federated Bayesian neural networks with priors in function space (Makhija, Ghosh, Ho 2023).

One round of client i, with phi_bar the consensus on the alignment set (AD):

    target = gamma * phi_bar + (1 - gamma) * phi_i(AD)
    psi*   = argmin_psi E_{w ~ p(.; psi)} CE(softmax(target), f(AD; w))           the prior, in function space
    q*     = argmin_q   kl_weight * KL[q || p(.; psi*)] - E_q log p(records | w)   Bayes by Backprop
    send     phi_i(AD) = mean over weight draws from q*

The Gaussian p(.; psi*) forgets which of its weights matter together, so local training can leave what peers taught
about classes the client does not hold. `rehearsal` adds to the loss of every step

    rehearsal * E_q mean over some points x of AD of CE(softmax(target(x)), f(x; w)),

which is the same objective under the prior p(w; psi*) exp(-n_i * rehearsal / kl_weight * mean CE over AD): a prior on
outputs, not only on weights.

What the paper leaves open is settled so: psi starts at the current posterior; in the KL no prior standard deviation
is below `prior_sd_floor` (a prior as narrow as the posterior drowns the data); q starts at psi*'s means with the
posterior's own standard deviations, or, as an option, at the previous posterior.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client, Update
from fedbnn.methods.bayesian import BayesianTraining, Posterior
from fedbnn.methods.exchange import Exchange
from fedbnn.methods.teacher import companion
from fedbnn.models.bayes import Gaussian, Prediction, kl_divergence, mixture, tune_prior
from fedbnn.models.training import Records


@settings
class FedBNN(BayesianTraining, Exchange[Posterior]):
    """Bayesian personal networks of any architecture, joined by a prior in function space."""

    name = "fedbnn"
    summary = "Bayesian networks of any architecture, joined by a prior in function space"

    prior_steps: int = Field(default=100, ge=0, description="Adam steps on the prior's parameters psi in each round")
    prior_batch: int = Field(default=128, ge=1, description="alignment points in a minibatch of prior tuning")
    prior_learning_rate: float = Field(
        default=2e-3, gt=0, description="Adam's learning rate on psi; 1e-4 for schedules of a hundred rounds"
    )
    prior_sd_floor: float = Field(
        default=0.1, gt=0, description="smallest standard deviation of the tuned prior in the KL"
    )
    rehearsal: float = Field(
        default=0.0,
        ge=0,
        description="weight of the consensus in local training itself, where each minibatch of own records is joined "
        "by one of alignment points; 0 leaves all to the prior",
    )
    companion: bool = Field(
        default=False,
        description="predict by the mean of the network and of a softmax model on public features that learns from the "
        "same records and consensus; it is never sent",
    )
    restart: Literal["prior", "posterior"] = Field(
        default="prior",
        description="where local training starts each round: at the tuned prior's means, or where it ended",
    )

    @property
    def uses_features(self) -> bool:
        return self.companion or super().uses_features

    def client_update(
        self, state: Posterior, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Posterior]:
        start, prior, info, consensus = state.q, self.alone_prior(client), {}, None
        target: Tensor | None = None
        if (phi_bar := message.get("phi_bar")) is not None:
            target = self.target(
                phi_bar, client, lambda: self.network(state, client, client.alignment, rng.child("own"))
            )
            psi, info["prior_loss"] = tune_prior(
                client.network,
                state.q,
                client.alignment,
                target,
                count=self.prior_steps,
                batch_size=self.prior_batch,
                learning_rate=self.prior_learning_rate,
                order=rng.child("prior order").torch(),
                noise=rng.child("prior weights").torch(),
                augment=client.training.augment,
                average_from=self.average_from(self.prior_steps),
            )
            prior = psi.with_sd_at_least(self.prior_sd_floor)
            consensus = Records(client.alignment, target) if self.rehearsal else None
            if self.restart == "prior":
                start = Gaussian(torch.cat([psi.mean, state.q.rho]))
        q, info["loss"] = self.train(
            start, prior, client, client.training.passes(round_number), rng, consensus, self.rehearsal
        )
        info["kl"] = float(kl_divergence(q, prior))
        info["mean_sd"] = float(q.sd.mean())
        taught = self.taught(client) if state.taught is None else state.taught
        new = Posterior(q.theta, taught, target if self.companion else None)
        sent = self.reply(
            client,
            message,
            round_number,
            lambda: self.network(new, client, client.alignment, rng.child("upload")),
            taught,
        )
        return Update(new, sent, info)

    def network(self, state: Posterior, client: Client, x: Tensor, rng: Stream) -> Prediction:
        """What the personal network alone says, which is what clients tell each other."""
        return super().predict(state, client, x, rng)

    def predict(self, state: Posterior, client: Client, x: Tensor, rng: Stream) -> Prediction:
        found = self.network(state, client, x, rng)
        return mixture(found, companion(client, state.heard, x)) if self.companion else found
