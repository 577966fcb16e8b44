"""The Bayesian client that FedBNN and Local-BNN share: a mean-field posterior, trained by Bayes by Backprop."""

from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.method import State
from fedbnn.federation.parties import Client
from fedbnn.methods.rehearsal import Rehearsal, local_batches
from fedbnn.models.bayes import Anchor, Gaussian, fit, weight_draws
from fedbnn.models.bayesian_part import without_posterior
from fedbnn.models.regression import Answer


@dataclass(frozen=True)
class Posterior(State):
    """A client's posterior over its weights, theta = [mu | rho]."""

    theta: Tensor

    @property
    def q(self) -> Gaussian:
        return Gaussian(self.theta)


@settings
class BayesianTraining:
    """Settings and steps of a Bayesian personal model."""

    learning_rate: float = Field(default=2e-3, gt=0, description="Adam's learning rate in local training")
    kl_weight: float = Field(
        default=0.01,
        ge=0,
        description="weight of KL[posterior || prior] against the log-likelihood of the client's records; "
        "1 is the plain ELBO, tiny data want far less",
    )
    prior_sd: float = Field(
        default=0.3, gt=0, description="standard deviation of the prior N(0, sd^2) before any consensus"
    )
    initial_rho: float = Field(
        default=-6.0,
        le=5,
        description="initial rho of every weight, whose standard deviation is softplus(rho): 0.0025 at -6; "
        "noise as large as the weights themselves keeps a network from learning",
    )
    mc_samples: int = Field(default=10, ge=1, description="weight draws for uploads and for evaluation")

    def initial_posterior(self, client: Client) -> Gaussian:
        q = Gaussian.around(client.initial_weights(), self.initial_rho)
        model = client.model
        if not model.slow:
            return q
        return q.known_at(without_posterior(model.bayesian, client.network.spans, model.name))

    def alone_prior(self, client: Client) -> Gaussian:
        return Gaussian.isotropic(client.network.size, self.prior_sd, client.device)

    def train(
        self,
        start: Gaussian,
        prior: Gaussian,
        client: Client,
        passes: int,
        rng: Stream,
        rehearsal: Rehearsal | None = None,
        offset: Tensor | None = None,
    ) -> tuple[Gaussian, float]:
        """`passes` epochs of Bayes by Backprop on the client's own records, from `start`, under `prior`.

        `offset` is added to the logits of own records: the log prior of their labels, where a network is to learn what
        does not depend on it.
        """
        return fit(
            client.network,
            start,
            local_batches(client, passes, rng, rehearsal, offset),
            learning_rate=self.learning_rate,
            generator=rng.child("weights").torch(),
            anchor=Anchor(prior, self.kl_weight / len(client.train)),
            rest_rate=client.model.rest_rate,
        )

    def outputs(self, q: Gaussian, client: Client, x: Tensor, rng: Stream) -> Answer:
        """The predictive distribution of the client's network under q."""
        return client.says(weight_draws(q, self.mc_samples, rng.child("predict").torch()), x)
