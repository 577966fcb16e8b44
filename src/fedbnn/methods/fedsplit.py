"""FedSplit (Pathak, Wainwright 2020): Peaceman-Rachford splitting, with inexact proximal steps.

Client i keeps z_i, which begins at the server's first x. With v = 2 x - z_i the reflection of z_i at x, it approaches
its proximal point and reflects again:

    w_i = argmin f_i(w) + strength/2 ||w - v||^2,    z_i <- z_i + 2 (w_i - x);    server: x <- 1/N sum_i z_i.

It rests where all w_i = x: there strength (x - z_i) = grad f_i(x), and as x is the mean of the z_i these sum to zero,
which is the optimum of the mean loss. That needs no exact argmin: gradient steps from x rest at the same point.

Scored are x (global) and each client's w_i (fine-tuned). As in the paper the proximal point is approached by plain
gradient steps from x, here on minibatches, as many as FedAvg takes. The paper has everybody in every round: here the
z_i of a client that is away stays as it was.
"""

from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client
from fedbnn.methods.point import Point
from fedbnn.methods.rehearsal import local_batches
from fedbnn.methods.remembered import Remembering
from fedbnn.models.training import Pull, descend


@dataclass(frozen=True)
class Split(Point):
    """A client's proximal point, and its z_i, which it has from its first turn on."""

    z: Tensor | None = None


@settings
class FedSplit(Remembering[Split]):
    """Averages of twice reflected proximal points."""

    name = "fedsplit"
    summary = "Peaceman-Rachford splitting: averages of reflected proximal points"
    client_state = Split

    strength: float = Field(
        default=1.0, gt=0, description="of the pull in the proximal step, 1 / s; strength * rate stays below 1"
    )
    rate: float = Field(default=0.05, gt=0, description="step size of the gradient steps of the proximal step")

    @model_validator(mode="after")
    def _stable(self) -> Self:
        if self.strength * self.rate >= 1:
            raise ValueError(f"strength * rate must be below 1, it is {self.strength * self.rate:g}")
        return self

    def client_init(self, client: Client) -> Split:
        return Split(client.initial_weights())

    def proximal_point(
        self, x: Tensor, pull: Pull, client: Client, round_number: int, rng: Stream
    ) -> tuple[Tensor, float]:
        """Where gradient steps from x lead, and the last minibatch's loss."""
        batches = local_batches(client, client.training.passes(round_number), rng)
        weights, loss, _ = descend(client.network, x, batches, rate=self.rate, pull=pull)
        return weights, loss

    def client_update(
        self, state: Split, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Split]:
        x = message.arrays["weights"]
        z = x if state.z is None else state.z
        weights, loss = self.proximal_point(x, Pull(2 * x - z, self.strength), client, round_number, rng)
        z = z + 2 * (weights - x)
        info = {"loss": loss, "drift": float((weights - x).norm()), "apart": float((z - x).norm())}
        return Update(Split(weights, z), Message({"weights": z}), info)
