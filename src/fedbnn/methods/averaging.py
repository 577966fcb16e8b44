"""The halves that methods share which average weights: one architecture for all, one weight vector at the server.

w <- sum_i a_i w_i,    a_i = n_i / sum n, or 1 / N        (McMahan et al. 2017)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec, records_form
from fedbnn.federation.method import Method, State, Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.models.training import Pull

S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Global(State):
    """The server's model."""

    weights: Tensor


def refuse_mixed(roster: Roster, method: str) -> None:
    """Weights of different architectures cannot be averaged."""
    groups: dict[str, list[str]] = {}
    for name, model in zip(roster.names, roster.models, strict=True):
        groups.setdefault(model.architecture, []).append(name)
    if len(groups) > 1:
        described = "; ".join(f"{model}: {_listed(names)}" for model, names in groups.items())
        raise UserError(
            f"method '{method}' averages weights, so all clients must run one architecture, but they run "
            f"{len(groups)} ({described}). Give [[models]] one entry, e.g. --set 'models=[{{name=\"cnn2\"}}]', or "
            "choose methods that need no common architecture (fedbnn, fedmd, feddf, local_bnn, local)"
        )


def _listed(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def count(client: Client) -> Tensor:
    """How many records a client has, as it tells the server."""
    return torch.tensor([float(len(client.train))])


def shares(replies: Mapping[int, Message]) -> dict[int, float]:
    """a_i = n_i / sum n for those that said how many records they have, otherwise equal shares."""
    sent = {client: reply.get("records") for client, reply in replies.items()}
    counts = {client: 1.0 if n is None else max(float(n[0]), 0.0) for client, n in sent.items()}
    total = sum(counts.values())
    return {client: n / total for client, n in counts.items()} if total > 0 else {}


def weighted_mean(replies: Mapping[int, Message], name: str = "weights") -> Tensor | None:
    """sum_i a_i of the arrays of this name; None where nobody sent any."""
    total: Tensor | None = None
    for client, share in shares(replies).items():
        array = replies[client].arrays[name]
        total = (torch.zeros_like(array) if total is None else total).add_(array, alpha=share)
    return total


class Averaging(Method[S, Global]):
    """A server that averages its clients' vectors."""

    server_state = Global
    one_architecture = True
    by_records: ClassVar[bool] = True  # a_i = n_i / sum n; otherwise every client counts alike

    def initial(self, roster: Roster) -> Tensor:
        """The vector that all clients start from."""
        return roster.initial_weights(0)

    def server_init(self, roster: Roster) -> Global:
        refuse_mixed(roster, self.name)
        return Global(self.initial(roster))

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        weights = {"weights": Numbers((self.initial_size(roster),))}
        return {**weights, "records": records_form()} if self.by_records else weights

    def initial_size(self, roster: Roster) -> int:
        """The length of the vector."""
        return roster.network(0).size

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        mean = weighted_mean(replies)
        return state if mean is None else Global(mean)

    def broadcast(self, state: Global, client: int) -> Message:
        return Message({"weights": state.weights})

    def upload(self, vector: Tensor, client: Client) -> Message:
        """A client's reply."""
        if not self.by_records:
            return Message({"weights": vector})
        return Message({"weights": vector, "records": count(client)})


@settings
class Relaxed(Averaging[S]):
    """A server that goes only a part of the way, or further: w <- (1 - beta) w + beta sum_i a_i w_i."""

    beta: float = Field(default=1.0, gt=0, description="how far the server moves towards the clients' average")

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        joined = super().server_update(state, replies, roster, rng)
        return Global(torch.lerp(state.weights, joined.weights, self.beta))


@settings
class SharedPoint(PointModel, PointTraining):
    """A plain client that takes the server's weights, trains them on its own records, and sends them back."""

    def pull(self, weights: Tensor) -> Pull | None:
        """What holds local training near the server's weights; nothing does here."""
        return None

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        start = message.arrays["weights"]
        weights, loss = self.train(start, client, client.training.passes(round_number), rng, self.pull(start))
        reply = Message({"weights": weights, "records": count(client)})
        return Update(Point(weights), reply, {"loss": loss, "drift": float((weights - start).norm())})

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        """The server's model, and the client's after its last local training."""
        return {"global": Point(message.arrays["weights"]), "fine_tuned": state}
