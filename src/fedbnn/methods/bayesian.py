"""The Bayesian client that FedBNN and Local-BNN share: a mean-field posterior, trained by Bayes by Backprop."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.method import Client, State
from fedbnn.models.bayes import Anchor, Gaussian, Prediction, fit, predict
from fedbnn.models.training import Records, epochs, steps


@dataclass(frozen=True)
class Posterior(State):
    """A client's posterior over its weights, theta = [mu | rho]."""

    theta: Tensor
    taught: Tensor | None = None  # points x classes: what its model on public features says of the alignment set
    heard: Tensor | None = None  # points x classes: the last target on the alignment set, for that model to learn from

    @property
    def q(self) -> Gaussian:
        return Gaussian(self.theta)


def mixed(own: Records, other: Records, weight: float, classes: int) -> Records:
    """One minibatch whose mean cross-entropy is that of `own` plus `weight` times that of `other`.

    Cross-entropy is linear in the target, so weights of records can be carried by their targets.
    """
    rows = len(own) + len(other)
    labels = functional.one_hot(own.y, classes) * (rows / len(own))
    return Records(torch.cat([own.x, other.x]), torch.cat([labels, other.y * (weight * rows / len(other))]))


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
    averaged: float = Field(
        default=0.0, ge=0, le=1, description="share of the last steps of training whose parameters are averaged"
    )
    mc_samples: int = Field(default=10, ge=1, description="weight draws for uploads and for evaluation")

    client_state = Posterior

    def client_init(self, client: Client) -> Posterior:
        return Posterior(Gaussian.around(client.initial_weights(), self.initial_rho).theta)

    def alone_prior(self, client: Client) -> Gaussian:
        return Gaussian.isotropic(client.network.size, self.prior_sd, client.device)

    def train(
        self,
        start: Gaussian,
        prior: Gaussian,
        client: Client,
        passes: int,
        rng: Stream,
        beside: Records | None = None,
        weight: float = 0.0,
    ) -> tuple[Gaussian, float]:
        """`passes` epochs of Bayes by Backprop on the client's own records, from `start`, under `prior`.

        A minibatch of records `beside` joins each of these; the mean of their losses has this weight.
        """
        size, augment = client.training.batch_size, client.training.augment
        batches: Iterator[Records] = epochs(client.train, passes, size, rng.child("order").torch(), augment)
        count = passes * -(-len(client.train) // size)
        if beside is not None:
            others = steps(beside, count, size, rng.child("beside").torch(), augment)
            batches = map(partial(mixed, weight=weight, classes=client.classes), batches, others)
        return fit(
            client.network,
            start,
            batches,
            learning_rate=self.learning_rate,
            generator=rng.child("weights").torch(),
            anchor=Anchor(prior, self.kl_weight / len(client.train)),
            average_from=self.average_from(count),
        )

    def average_from(self, count: int) -> int | None:
        """The first of `count` steps that is averaged."""
        return int(count * (1 - self.averaged)) if self.averaged else None

    def predict(self, state: Posterior, client: Client, x: Tensor, rng: Stream) -> Prediction:
        return predict(client.network, state.q, x, self.mc_samples, rng.child("predict").torch())
