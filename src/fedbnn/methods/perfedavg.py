"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar 2020): a shared model that is good after one step on a client's own records.

    F(w) = sum_i a_i F_i(w),    F_i(w) = f_i(w - alpha grad f_i(w)),    a_i = n_i / sum n

A client's local steps follow the gradient of its F_i, each from three minibatches D, D' and D'':

    u = w - alpha g(w; D),    v = g(u; D'),    grad F_i ~ v - alpha H(w; D'') v,

g a minibatch's gradient and H its matrix of second derivatives. `curvature` says how H v is come by:

- first_order    it is left out
- hessian_free   (g(w + delta v; D'') - g(w - delta v; D'')) / (2 delta)

The server averages. With alpha = 0 this is FedAvg. A step costs two gradients, without second derivatives, or four.

Scored are the personal model, w - alpha grad f_i(w) with f_i over all of the client's records, and w itself (global).
Unlike the paper, steps are Adam's, begun anew in each round, and clients count by their records.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.averaging import Averaging
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, adam, gradient_at, steps


def meta_gradient(
    network: FlatNetwork, w: Tensor, d: Records, d1: Records, d2: Records | None, alpha: float, delta: float
) -> tuple[Tensor, Tensor]:
    """The gradient of F_i at w, and the loss on D' after the step; no D'': without second derivatives."""
    after = w - alpha * gradient_at(network, w, d)[0]
    v, loss = gradient_at(network, after, d1)
    if d2 is None:
        return v, loss
    above, below = (gradient_at(network, w + sign * delta * v, d2)[0] for sign in (1, -1))
    return v - alpha * (above - below) / (2 * delta), loss


@settings
class PerFedAvg(PointModel, PointTraining, Averaging[Point]):
    """Federated averaging of a start from which one step is enough."""

    name = "perfedavg"
    summary = "an averaged model from which one step on its own records makes a client's"
    regression = True

    inner_rate: float = Field(default=0.01, ge=0, description="alpha, size of the step that adapts the shared model")
    curvature: Literal["first_order", "hessian_free"] = Field(
        default="hessian_free",
        description="second derivatives of the adapted loss: first_order leaves them out, hessian_free takes "
        "differences of gradients, at twice the cost",
    )
    delta: float = Field(default=1e-3, gt=0, description="how far such differences reach, times the gradient's length")

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        start, passes = message.arrays["weights"], client.training.passes(round_number)
        size, augment = client.training.batch_size, client.training.augment
        count = passes * -(-len(client.train) // size)
        inner, beside = (
            steps(client.train, count, size, rng.child(name).torch(), augment) for name in ("inner", "curvature")
        )
        network, w, loss = client.network, start.clone(), torch.zeros(())
        optimiser = adam(network, start, self.learning_rate, self.weight_decay)
        for d1, d in zip(local_batches(client, passes, rng), inner, strict=True):
            d2 = next(beside) if self.curvature == "hessian_free" else None
            gradient, loss = meta_gradient(network, w, d, d1, d2, self.inner_rate, self.delta)
            network.weights.copy_(w)
            network.gradient.copy_(gradient)
            optimiser.step()
            w.copy_(network.weights)
        return Update(Point(w), self.upload(w, client), {"loss": float(loss), "drift": float((w - start).norm())})

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        shared, own = message.arrays["weights"], client.train
        client.network.train()
        slope = torch.zeros_like(shared)
        for index in torch.arange(len(own), device=client.device).split(client.training.batch_size):
            slope.add_(gradient_at(client.network, shared, own.take(index))[0], alpha=len(index) / len(own))
        return {"personal": Point(shared - self.inner_rate * slope), "global": Point(shared)}
