"""Multi-task learning after MOCHA (Smith, Chiang, Sanjabi, Talwalkar 2017): how clients' models are related is learned.

    min over w_i and Omega of  sum_i f_i(w_i) + lambda / (2 m) tr(D Omega^-1 D^T),    D = [w_1 - w_0 .. w_m - w_0]

Omega, m x m, of trace one, says how alike the tasks are. Given D the best one is (D^T D)^(1/2) over its trace; a share
`ridge` of the mean square of D's columns is added to the diagonal of D^T D, which keeps Omega invertible. With it the
penalty is lambda / (2 m) times the square of the sum of D's singular values: tasks come to share few directions.

A round: the server holds what clients sent last, works out Omega and P = Omega^-1 / m, and sends client i

    strength_i = lambda sum_j |P_ij|,    centre_i = w_i - (sum_j P_ij (w_j - w_0)) / sum_j |P_ij|.

Client i takes E local epochs on f_i(w) + strength_i / 2 ||w - centre_i||^2 from its w_i, and sends it back. These terms
together lie above the penalty and touch it where clients are, so all may move at once and what is minimised falls.
Tasks that are not related, Omega = I / m, are each held near w_0 with strength lambda; with lambda = 0 clients train
alone. m are the clients that were heard; others are not related to anybody yet. What a client is sent is a mixture of
all weights by their relations: among few clients it can tell much about one other.

As in the paper: the problem, the update of Omega (its example of learned relations, Zhang and Yeung 2010), alternating
with that of the models, clients that may be away, and a local term that bounds the others' part. Not as in the paper:
models are networks, trained by Adam on a mean loss, not linear ones in the dual with its measured inexactness, so no
rate of convergence is known; penalised are changes from common first weights w_0 and not weights, which in a network
mean nothing near zero, and the ridge stands for its further penalty on all weights alike; Omega is worked out anew in
every round. Scored is the client's own model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec
from fedbnn.federation.method import Method, Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import refuse_mixed
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.methods.remembered import Remembered
from fedbnn.models.training import Pull


def relations(changes: Tensor, ridge: float) -> Tensor:
    """Omega of these changes, tasks x weights, in double precision: symmetric, positive definite, of trace one."""
    rows = changes.double()
    gram = rows @ rows.T
    mean = gram.diagonal().mean()
    if float(mean) == 0:
        return torch.eye(len(gram), dtype=gram.dtype) / len(gram)
    values, vectors = torch.linalg.eigh(gram / mean)
    roots = (values.clamp_min(0) + ridge).sqrt()
    omega: Tensor = (vectors * (roots / roots.sum())) @ vectors.T
    return omega


@dataclass(frozen=True)
class Related(Remembered):
    """The common first weights, what each client sent last, and how clients are related."""

    omega: Tensor  # clients x clients, in double precision; only itself for a client that has sent nothing yet


@settings
class MOCHA(PointModel, PointTraining, Method[Point, Related]):
    """Personal models whose relations are learned at the server."""

    name = "mocha"
    summary = "personal models that are held together as far as they turn out to be related"
    server_state = Related
    one_architecture = True
    regression = True

    strength: float = Field(default=0.1, ge=0, description="lambda, how strongly relations hold personal models")
    ridge: float = Field(
        default=0.01,
        ge=1e-4,
        le=1,
        description="what is added to the diagonal before relations are worked out, as a share of its mean: the larger "
        "it is, the less related clients seem",
    )

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        centre, strength = message.arrays["centre"], float(message.arrays["strength"])
        start = centre if round_number == 0 else state.weights  # all begin at the same weights
        passes = client.training.passes(round_number)
        weights, loss = self.train(start, client, passes, rng, Pull(centre, strength))
        info = {"loss": loss, "apart": float((weights - centre).norm()), "strength": strength}
        return Update(Point(weights), Message({"weights": weights}), info)

    def server_init(self, roster: Roster) -> Related:
        refuse_mixed(roster, self.name)
        first = roster.initial_weights(0)
        heard = torch.zeros(roster.clients, dtype=torch.bool)
        omega = torch.eye(roster.clients, dtype=torch.float64)
        return Related(first, first.new_zeros(roster.clients, len(first)), heard, omega)

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {"weights": Numbers((roster.network(client).size,))}

    def server_update(self, state: Related, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Related:
        return self.related(state.with_replies(replies, "weights")) if replies else state

    def without(self, state: Related, client: int) -> Related:
        return self.related(state.without(client))

    def related(self, state: Related) -> Related:
        """With Omega as it is among those that were heard."""
        known = state.heard.nonzero()[:, 0]
        count = max(len(known), 1)
        omega = torch.eye(len(state.heard), dtype=torch.float64) / count
        if len(known):
            omega[known[:, None], known] = relations(state.sent[known] - state.weights, self.ridge)
        return replace(state, omega=omega)

    def broadcast(self, state: Related, client: int) -> Message:
        count = max(int(state.heard.sum()), 1)
        row = torch.linalg.inv(state.omega)[client] / count
        total = row.abs().sum()
        changes = (state.sent - state.weights) * state.heard[:, None]
        here = changes[client] - (row / total).to(changes.dtype) @ changes
        strength = torch.tensor([self.strength * float(total)])
        return Message({"centre": state.weights + here, "strength": strength})
