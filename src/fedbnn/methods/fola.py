"""FOLA (Liu, Zheng, Chen, Yang, Liu 2021): online Laplace approximation at the clients and at the server.

Every posterior is a diagonal Gaussian N(theta, Omega^-1). In round r client i minimises

    CE(w) + prior_weight / (2 r) sum_k Omega_k (w_k - theta_k)^2          the server's posterior as its prior

and adds its Fisher information at the weights theta_i it reached, from minibatches of b of its n_i records,

    Omega_i = Omega + sum_b (b / n_i) g_b^2,    g_b the gradient of the minibatch's mean cross-entropy.

The server multiplies the posteriors, each to the power of its share a_i = n_i / sum n:

    Omega = sum_i a_i Omega_i,    theta = sum_i a_i Omega_i theta_i / Omega,

and the plain mean where Omega is about zero.

Omega grows by one Fisher information a round, hence the division by r. Scored are theta (global) and each client's
theta_i (fine-tuned). The Fisher information is that at the end of local training, from one more pass over the records.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import MOST_SENT, Message, Numbers, UploadSpec, records_form
from fedbnn.federation.method import Method, State, Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import count, refuse_mixed, shares
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Pull, Records, epochs

NEGLIGIBLE = 1e-12  # a precision below this, relative to the greatest, says nothing about a weight


@dataclass(frozen=True)
class Laplace(State):
    """The server's posterior N(weights, precision^-1)."""

    weights: Tensor
    precision: Tensor


def fisher(network: FlatNetwork, weights: Tensor, batches: Iterator[Records], records: int) -> Tensor:
    """The diagonal of the Fisher information at these weights: sum_b (b / n) g_b^2."""
    network.module.eval()
    network.weights.copy_(weights)
    total = torch.zeros_like(weights)
    for batch in batches:
        network.gradient.zero_()
        batch.loss(network(batch.x)).backward()
        total.addcmul_(network.gradient, network.gradient, value=len(batch) / records)
    return total


def product(means: Tensor, precisions: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and precision of prod_i N(m_i, P_i^-1)^a_i; arguments are clients x weights, and clients."""
    weighted = powers[:, None] * precisions
    precision = weighted.sum(0)
    plain = (powers[:, None] * means).sum(0) / powers.sum()
    known = precision > NEGLIGIBLE * precision.max()
    mean = torch.where(known, (weighted * means).sum(0) / precision.where(known, torch.ones(())), plain)
    return mean, precision


@settings
class FOLA(PointModel, PointTraining, Method[Point, Laplace]):
    """A product of Laplace approximations, which is the prior of the next round."""

    name = "fola"
    summary = "a product of the clients' Laplace approximations, one architecture"
    server_state = Laplace
    one_architecture = True
    regression = True

    prior_weight: float = Field(
        default=1.0, ge=0, description="weight of the server's posterior as a prior in local training"
    )

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        theta, omega = message.arrays["weights"], message.arrays["precision"]
        pull = Pull(theta, omega * (self.prior_weight / max(round_number, 1)))
        weights, loss = self.train(theta, client, client.training.passes(round_number), rng, pull)
        one_pass = epochs(client.train, 1, client.training.batch_size, rng.child("fisher").torch())
        found = fisher(client.network, weights, one_pass, len(client.train))
        arrays = {
            "weights": weights,
            "precision": omega + found,
            "records": count(client),
        }
        return Update(Point(weights), Message(arrays), {"loss": loss, "fisher": float(found.mean())})

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"global": Point(message.arrays["weights"]), "fine_tuned": state}

    def server_init(self, roster: Roster) -> Laplace:
        refuse_mixed(roster, self.name)
        weights = roster.initial_weights(0)
        return Laplace(weights, torch.zeros_like(weights))

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        size = roster.network(client).size
        precision = Numbers((size,), 0.0, MOST_SENT)
        return {"weights": Numbers((size,)), "precision": precision, "records": records_form()}

    def server_update(self, state: Laplace, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Laplace:
        powers = shares(replies)
        if not powers:
            return state
        means, precisions = (
            torch.stack([replies[client].arrays[name] for client in powers]) for name in ("weights", "precision")
        )
        # A negative precision is no Gaussian's: it can only come from a client that is broken or lies.
        return Laplace(*product(means, precisions.clamp_min(0), torch.tensor(list(powers.values()))))

    def broadcast(self, state: Laplace, client: int) -> Message:
        return Message({"weights": state.weights, "precision": state.precision})
