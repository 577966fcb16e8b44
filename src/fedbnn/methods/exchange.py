"""The half that FedBNN and FedMD share: exchange of outputs on the alignment set, and the server that joins them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fedbnn import settings
from fedbnn.bayes import Prediction
from fedbnn.errors import UserError
from fedbnn.message import Message
from fedbnn.method import Client, Method, Roster, State
from fedbnn.methods.consensus import Rule, Weights, join, output_of, target_of
from fedbnn.randomness import Stream

S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Uploads(State):
    """The server's memory: every client's latest output on the alignment set, its weight, and the consensus."""

    phi: Tensor  # clients x points x classes; zeros for a client not heard from yet
    weight: Tensor  # clients; zero for a client not heard from yet
    phi_bar: Tensor | None = None  # points x classes


@settings.dataclass(frozen=True, config=settings.STRICT)
class Exchange(Method[S, Uploads]):
    """Clients send outputs on the alignment set; the server joins the latest of every client and sends that back."""

    server_state = Uploads

    gamma: float = Field(default=0.7, ge=0, le=1, description="trust in the consensus against the client's own output")
    consensus: Rule = Field(
        default="mean_logits",
        description="how outputs are joined: mean_logits, mean_probabilities, sharpened (a power of the mean "
        "probabilities), or corrected (these divided by their average over the alignment set first; for balanced sets)",
    )
    sharpen: float = Field(default=3.0, gt=0, description="power of the sharpened and the corrected consensus")
    weights: Weights = Field(
        default="uniform",
        description="a client's weight in the consensus: uniform, data (its records) or compute (its model's size)",
    )

    def upload(self, prediction: Prediction, client: Client) -> Message:
        """A client's reply, from its prediction on the alignment set."""
        arrays = {"phi": output_of(prediction, self.consensus)}
        if self.weights != "uniform":
            size = len(client.train) if self.weights == "data" else client.network.size
            arrays["weight"] = torch.tensor([float(size)])
        return Message(arrays)

    def target(self, phi_bar: Tensor, own: Prediction) -> Tensor:
        """The corrected target on the alignment set, as class probabilities."""
        return target_of(phi_bar, output_of(own, self.consensus), self.gamma, self.consensus)

    def server_init(self, roster: Roster) -> Uploads:
        points = len(roster.alignment)
        if points == 0:
            raise UserError(
                f"method '{self.name}' exchanges outputs on the alignment set: data.alignment must be at least 1"
            )
        return Uploads(torch.zeros(roster.clients, points, roster.classes), torch.zeros(roster.clients))

    def agreed(self, roster: Roster, client: int) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"phi": (len(roster.alignment), roster.classes)}
        return shapes if self.weights == "uniform" else {**shapes, "weight": (1,)}

    def server_update(self, state: Uploads, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Uploads:
        phi, weight = state.phi.clone(), state.weight.clone()
        for client, reply in replies.items():
            phi[client] = reply.arrays["phi"]
            sent = reply.get("weight")
            weight[client] = 1.0 if sent is None else sent[0]
        heard = weight > 0
        if not bool(heard.any()):
            return state
        phi_bar = join(phi[heard], weight[heard], self.consensus, self.sharpen)
        return replace(state, phi=phi, weight=weight, phi_bar=phi_bar)

    def broadcast(self, state: Uploads, client: int) -> Message:
        return Message() if state.phi_bar is None else Message({"phi_bar": state.phi_bar})
