"""FedOpt (Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan 2021): an adaptive optimiser at the server.

Clients train as in FedAvg; the server takes their mean change as a gradient, and one step of its own optimiser:

    D = sum_i (n_i / sum n) (w_i - w),    m <- beta1 m + (1 - beta1) D,    w <- w + server_rate m / (sqrt(v) + tau)

- adam       v <- beta2 v + (1 - beta2) D^2                        FedAdam
- yogi       v <- v - (1 - beta2) D^2 sign(v - D^2)                FedYogi
- adagrad    v <- v + D^2                                          FedAdagrad; the paper runs it with beta1 = 0

from m = 0 and v = tau^2, without correction of a bias, as in the paper. tau says how adaptive: where it is far above
all changes, every weight moves by a fixed multiple of m.

Scored are w (global) and each client's w_i (fine-tuned). Unlike the paper, clients use Adam, begun anew in each round,
as in every other method here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec, records_form
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Roster
from fedbnn.methods.averaging import Global, SharedPoint, refuse_mixed, weighted_mean
from fedbnn.methods.point import Point

Optimiser = Literal["adam", "yogi", "adagrad"]


@dataclass(frozen=True)
class Adaptive(Global):
    """The server's model, and the moments of its changes."""

    m: Tensor
    v: Tensor


def second_moment(v: Tensor, change: Tensor, optimiser: Optimiser, beta2: float) -> Tensor:
    """V after this change."""
    square = change.square()
    if optimiser == "adagrad":
        return v + square
    if optimiser == "yogi":
        return v - (1 - beta2) * square * torch.sign(v - square)
    return beta2 * v + (1 - beta2) * square


@settings
class FedOpt(SharedPoint, Method[Point, Adaptive]):
    """Federated averaging with an adaptive step at the server."""

    name = "fedopt"
    summary = "FedAvg with Adam, Yogi or Adagrad at the server"
    server_state = Adaptive
    one_architecture = True
    regression = True

    optimiser: Optimiser = Field(default="adam", description="the server's optimiser: adam, yogi or adagrad")
    server_rate: float = Field(default=0.01, gt=0, description="step size of the server's optimiser")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the mean of changes; 0: the last one alone")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="decay of the mean of squared changes (adam, yogi)")
    tau: float = Field(
        default=1e-3, gt=0, description="added to the root of v: weights that change by less than this move less"
    )

    def server_init(self, roster: Roster) -> Adaptive:
        refuse_mixed(roster, self.name)
        weights = roster.initial_weights(0)
        return Adaptive(weights, torch.zeros_like(weights), torch.full_like(weights, self.tau**2))

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {"weights": Numbers((roster.network(client).size,)), "records": records_form()}

    def server_update(self, state: Adaptive, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Adaptive:
        mean = weighted_mean(replies)
        return state if mean is None else self.stepped(state, mean - state.weights)

    def stepped(self, state: Adaptive, change: Tensor) -> Adaptive:
        """The server's state after a mean change of the clients."""
        m = torch.lerp(change, state.m, self.beta1)
        v = second_moment(state.v, change, self.optimiser, self.beta2)
        return replace(state, weights=state.weights + self.server_rate * m / (v.sqrt() + self.tau), m=m, v=v)

    def broadcast(self, state: Adaptive, client: int) -> Message:
        return Message({"weights": state.weights})
