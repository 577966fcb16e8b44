"""pFedMe (T. Dinh, Tran, Nguyen 2020): personal models as Moreau envelopes around the server's model.

    F_i(w) = min_theta f_i(theta) + lambda/2 ||theta - w||^2

A round of client i, from w_i = theta = w: R times, draw a minibatch, take K steps on it,

    theta <- theta - eta_p (grad f(theta) + lambda (theta - w_i)),    then    w_i <- w_i - lambda eta (w_i - theta);

theta carries on between minibatches. The server: w <- (1 - beta) w + beta sum_i (n_i / sum n) w_i.
Scored are the personal model theta and the server's w.
"""

from collections.abc import Iterator, Mapping
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.averaging import Relaxed
from fedbnn.methods.point import Point, PointModel
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Pull, Records, steps


def moreau(
    network: FlatNetwork,
    start: Tensor,
    batches: Iterator[Records],
    *,
    inner_steps: int,
    strength: float,
    personal_rate: float,
    rate: float,
) -> tuple[Tensor, Tensor, float]:
    """theta, w_i and the last minibatch's cross-entropy after going through the batches from `start`."""
    network.train()
    theta = network.weights.copy_(start)
    w = start.clone()
    pull = Pull(w, strength)  # w moves in place, and the pull with it
    loss = torch.zeros(())
    for batch in batches:
        for _ in range(inner_steps):
            network.gradient.zero_()
            loss = batch.loss(network(batch.x))
            loss.backward()
            pull.add_gradient(theta, network.gradient)
            theta.sub_(network.gradient, alpha=personal_rate)
        w.lerp_(theta, strength * rate)
    return theta.clone(), w, float(loss.detach())


@settings
class PFedMe(PointModel, Relaxed[Point]):
    """Personal models pulled towards an average of what their pulls do to it."""

    name = "pfedme"
    summary = "personal models as Moreau envelopes around an averaged one"
    regression = True

    personal_rate: float = Field(default=0.09, gt=0, description="eta_p, step size of the personal model theta")
    rate: float = Field(default=0.005, gt=0, description="eta, step size of the client's copy of the global model")
    strength: float = Field(
        default=15.0, gt=0, description="lambda, strength of the pull; strength * rate stays below 1"
    )
    inner_steps: int = Field(default=5, ge=1, description="K, steps on one minibatch")
    iterations: int = Field(default=20, ge=1, description="R, minibatches in a round")

    @model_validator(mode="after")
    def _stable(self) -> Self:
        if self.strength * self.rate >= 1:
            raise ValueError(f"strength * rate must be below 1, it is {self.strength * self.rate:g}")
        return self

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        batches = steps(
            client.train,
            self.iterations,
            client.training.batch_size,
            rng.child("order").torch(),
            client.training.augment,
        )
        theta, w, loss = moreau(
            client.network,
            message.arrays["weights"],
            batches,
            inner_steps=self.inner_steps,
            strength=self.strength,
            personal_rate=self.personal_rate,
            rate=self.rate,
        )
        return Update(Point(theta), self.upload(w, client), {"loss": loss, "apart": float((theta - w).norm())})

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"personal": state, "global": Point(message.arrays["weights"])}
