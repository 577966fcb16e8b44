"""IFCA (Ghosh, Chung, Yin, Ramchandran 2020): k models for k clusters of clients, which find their cluster themselves.

The server has w_1 .. w_k. A client receives all of them, takes the one that fits its own records best, and trains it;
the server averages each model over those that took it,

    j_i = argmin_j f_i(w_j);    w_i <- E local epochs on f_i from w_{j_i};    w_j <- sum_{i: j_i = j} a_i w_i,

a_i = n_i over the sum of n among them. A model that nobody took stays as it is. With one cluster this is FedAvg.

What leaves a client: its weights and number of records, as in FedAvg, and with them the number j_i of its cluster, in
clear. It is a fact about its records: the server, and whoever reads the messages, learns which clients are alike.
Other clients get the averages alone, but that of a cluster of one is this client's own weights.

Scored are the newest model that fits a client's records best (personal) and its own after its last local training
(fine-tuned). The models differ from the start by chance, as in the paper, and as there, where all clients take the same
one the others stay unused: another seed may do better. Of the paper's two averages, of gradients and of models, this is
the second, weighted by records (the paper counts clients alike), and clients use Adam, begun anew in each round.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global, weighted_mean
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.models.bayes import logits_of


def best_fit(client: Client, models: Tensor) -> int:
    """Which of the models [clusters x weights] has the least loss on the client's records; of equals the first."""
    own = client.train
    losses = [float(own.loss(logits_of(client.network, one, own.x))) for one in models]
    return losses.index(min(losses))


@settings
class IFCA(PointModel, PointTraining, Averaging[Point]):
    """Federated averaging in clusters that clients choose."""

    name = "ifca"
    summary = "an averaged model for each cluster of clients, who take the one that fits them best"
    regression = True

    clusters: int = Field(default=2, ge=1, description="k, models at the server")

    def initial(self, roster: Roster) -> Tensor:
        one_each = replace(roster, models=roster.models[:1] * self.clusters)
        return torch.stack([one_each.initial_weights(cluster) for cluster in range(self.clusters)])

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        cluster = best_fit(client, message.arrays["weights"])
        start, passes = message.arrays["weights"][cluster], client.training.passes(round_number)
        weights, loss = self.train(start, client, passes, rng)
        sent = {**self.upload(weights, client).arrays, "cluster": torch.tensor([float(cluster)])}
        info = {"loss": loss, "drift": float((weights - start).norm()), "cluster": float(cluster)}
        return Update(Point(weights), Message(sent), info)

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        models = message.arrays["weights"]
        return {"personal": Point(models[best_fit(client, models)].clone()), "fine_tuned": state}

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {**super().expected_upload(roster, client), "cluster": Numbers((1,), 0.0, self.clusters - 1)}

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        models = list(state.weights)
        taken = {client: round(float(reply.arrays["cluster"])) for client, reply in replies.items()}
        for cluster in range(self.clusters):
            mean = weighted_mean({client: replies[client] for client, at in taken.items() if at == cluster})
            models[cluster] = models[cluster] if mean is None else mean
        return Global(torch.stack(models))
