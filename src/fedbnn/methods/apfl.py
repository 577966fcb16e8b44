"""APFL (Deng, Kamani, Mahdavi 2020): every client mixes a model of its own with the shared one, and learns how much.

Client i keeps v_i and alpha_i and receives w, where its w_i starts. Its model is m_i = alpha_i v_i + (1 - alpha_i) w_i.
For each minibatch of the round, both from where they are before it,

    w_i <- step on f_i(w_i);    v_i <- step on f_i(alpha_i v_i + (1 - alpha_i) w_i) as a function of v_i,

and before the first one, by the gradient of the mixture's loss on it,

    alpha_i <- alpha_i - alpha_rate <v_i - w_i, grad f_i(m_i)>,    kept from 0 to 1;    alpha_rate = 0: it is fixed.

It sends w_i alone; the server averages, w <- sum_i (n_i / sum n) w_i. What happens to w is FedAvg, whatever alpha is;
with alpha = 0 fixed the client's model is w, and with alpha = 1 fixed it is trained alone.

Scored are alpha_i v_i + (1 - alpha_i) w with the newest w (personal), as in the paper's theorem, and w (global). In the
warm-up v_i starts at w. A round costs twice FedAvg's. Unlike the paper, steps are Adam's, begun anew in each round,
alpha has a rate of its own, and clients count by their records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.averaging import Averaging
from fedbnn.methods.point import Point, PointTraining, point_outputs
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression import Answer
from fedbnn.models.training import Records, gradient_at


@dataclass(frozen=True)
class Mixing(Point):
    """A client's own v_i, and how much of it is in the mixture."""

    alpha: Tensor  # one number from 0 to 1


def new_alpha(network: FlatNetwork, own: Tensor, shared: Tensor, alpha: Tensor, rate: float, batch: Records) -> Tensor:
    """Alpha after a step against the gradient of the mixture's loss on this minibatch."""
    slope, _ = gradient_at(network, torch.lerp(shared, own, alpha), batch)
    return (alpha - rate * torch.dot(own - shared, slope)).clamp(0, 1)


@settings
class APFL(PointTraining, Averaging[Mixing]):
    """Mixtures of a shared model and one's own."""

    name = "apfl"
    summary = "mixtures of an averaged model and each client's own, by a share that adapts"
    client_state = Mixing
    regression = True

    alpha: float = Field(default=0.5, ge=0, le=1, description="share of the own model in the mixture at the start")
    alpha_rate: float = Field(
        default=0.05, ge=0, description="step size of that share, which moves once a round; 0: it stays as it is"
    )

    def client_init(self, client: Client) -> Mixing:
        weights = client.initial_weights()
        return Mixing(weights, weights.new_full((1,), self.alpha))

    def client_update(
        self, state: Mixing, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Mixing]:
        network, start = client.network, message.arrays["weights"]
        shared, own = (nn.Parameter(one.clone(), requires_grad=False) for one in (start, state.weights))
        if round_number == 0:
            own.copy_(start)
        alpha, loss = state.alpha, torch.zeros(())
        optimiser = torch.optim.Adam([shared, own], lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)
        network.train()
        for number, batch in enumerate(local_batches(client, client.training.passes(round_number), rng)):
            if number == 0 and self.alpha_rate > 0:
                alpha = new_alpha(network, own, shared, alpha, self.alpha_rate, batch)
            slope, loss = gradient_at(network, torch.lerp(shared, own, alpha), batch)
            shared.grad, _ = gradient_at(network, shared, batch)
            own.grad = alpha * slope
            optimiser.step()
        w, v = shared.detach().clone(), own.detach().clone()
        info = {"loss": float(loss), "drift": float((w - start).norm()), "alpha": float(alpha)}
        return Update(Mixing(v, alpha.clone()), self.upload(w, client), info)

    def predict(self, state: Mixing, client: Client, x: Tensor, rng: Stream) -> Answer:
        return point_outputs(state.weights, client, x)

    def scored(self, state: Mixing, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Mixing]:
        shared = message.arrays["weights"]
        mixed = torch.lerp(shared, state.weights, state.alpha)
        return {"personal": replace(state, weights=mixed), "global": replace(state, weights=shared)}
