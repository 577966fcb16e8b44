"""FedProto (Tan, Long, Liu, Zhou, Lu, Jiang, Zhang 2022): clients of any architecture exchange class prototypes.

Client i has an embedding z = ReLU(f_i(x)), where f_i is its architecture with `embedding` outputs, and a linear
classifier on it. Over its records it minimises

    CE + strength * mean_b ||z_b - C_y(b)||^2 / embedding,

where C_y is the federation's prototype of the record's class (a class that has none yet pulls nothing), and sends the
mean embedding of each class that it holds, with its counts; the server joins them by these:

    C_ij = mean of z over i's records of class j,    C_j = sum_i n_ij C_ij / sum_i n_ij

A class that nobody who replied holds keeps its prototype. Networks and classifiers never leave their clients, but how
many records of each class a client holds does.

Scored is the personal model: by default its classifier. With `answer = "prototypes"`, which is the paper's, it is the
nearest of the server's newest prototypes, with probabilities exp(-||z - C_j||^2 / 2), normalised; so it can name
classes that the client has never seen. Unlike the paper's equation the server's mean is not divided by the number of
clients once more, prototypes are worked out after local training instead of during it, and clients use Adam.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor, nn
from torch.nn import functional

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import MOST_RECORDS, Message, Numbers, UploadSpec
from fedbnn.federation.method import Method, State, Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.point import Point, PointTraining
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import Prediction, average
from fedbnn.models.bayes.predictive import entropy
from fedbnn.models.network import FlatNetwork
from fedbnn.models.representation import representations_of, represented
from fedbnn.models.training import Records, fit_point


@dataclass(frozen=True)
class Embedded(Point):
    """Weights of the embedding and then of the classifier, and the server's prototypes where they give the answer."""

    prototypes: Tensor | None = None
    known: Tensor | None = None


@dataclass(frozen=True)
class Prototypes(State):
    """A prototype for every class, classes x embedding, and 1 for those of which there is one, otherwise 0."""

    prototypes: Tensor
    known: Tensor


def class_means(z: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean embedding of each class, zero for one without records, and how many records it has."""
    member = functional.one_hot(labels, classes).to(z.dtype)
    counts = member.sum(0)
    return (member.T @ z) / counts.clamp_min(1)[:, None], counts


def joined(prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Means over clients by their counts, and which classes anybody holds; clients x classes (x embedding)."""
    total = counts.sum(0)
    share = counts / total.clamp_min(torch.finfo(counts.dtype).tiny)
    return torch.einsum("ij,ijd->jd", share, prototypes), (total > 0).to(counts.dtype)


def apart(z: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean over records of ||z - C_y||^2 / embedding, where a class without a prototype counts as zero."""
    return (known[labels] * (z - prototypes[labels]).square().mean(1)).mean()


@settings
class FedProto(PointTraining, Method[Embedded, Prototypes]):
    """Networks of any architecture whose embeddings of a class meet at its prototype."""

    name = "fedproto"
    summary = "networks of any architecture, held near the clients' mean embedding of each class"
    client_state = Embedded
    server_state = Prototypes

    embedding: int = Field(default=50, ge=1, description="dimensions of the embedding, the same for all architectures")
    strength: float = Field(default=1.0, ge=0, description="lambda, strength of the pull towards the prototypes")
    answer: Literal["classifier", "prototypes"] = Field(
        default="classifier",
        description="what predicts: the client's classifier, or the nearest of the server's prototypes",
    )

    def network(self, client: Client) -> FlatNetwork:
        """The embedding with its classifier: scratch space, as `Client.network`."""
        model, shape = json.dumps(asdict(client.model)), tuple(client.train.x.shape[1:])
        return _scratch(model, shape, self.embedding, client.classes, client.seed, client.device)

    def client_init(self, client: Client) -> Embedded:
        shape, seed = tuple(client.train.x.shape[1:]), Stream((client.seed, "model", client.index)).seed
        network = FlatNetwork(lambda: embedded(client.model, shape, self.embedding, client.classes), seed)
        return Embedded(network.weights.to(client.device))

    def client_update(
        self, state: Embedded, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Embedded]:
        network, prototypes, known = self.network(client), message.arrays["prototypes"], message.arrays["known"]

        def loss(batch: Records) -> Tensor:
            z, logits = represented(network, batch.x)
            return batch.loss(logits) + self.strength * apart(z, batch.y, prototypes, known)

        weights, last = fit_point(
            network,
            state.weights,
            local_batches(client, client.training.passes(round_number), rng),
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            loss_of=loss,
        )
        z, labels = representations_of(network, weights, client.train.x), client.train.y
        means, counts = class_means(z, labels, client.classes)
        info = {"loss": last, "apart": float(apart(z, labels, prototypes, known))}
        return Update(Embedded(weights), Message({"prototypes": means, "counts": counts}), info)

    def predict(self, state: Embedded, client: Client, x: Tensor, rng: Stream) -> Prediction:
        network = self.network(client)
        if state.prototypes is None or state.known is None:
            return average(network, iter([state.weights]), x)
        squares = torch.cdist(representations_of(network, state.weights, x), state.prototypes).square()
        probs = (-squares / 2).masked_fill(state.known == 0, -torch.inf).softmax(1)
        return Prediction.of(probs, entropy(probs))

    def scored(self, state: Embedded, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Embedded]:
        prototypes, known = message.arrays["prototypes"], message.arrays["known"]
        if self.answer == "classifier" or not bool(known.any()):
            return {"personal": state}
        return {"personal": replace(state, prototypes=prototypes, known=known)}

    def server_init(self, roster: Roster) -> Prototypes:
        zeros = torch.zeros(roster.classes, self.embedding, device=roster.alignment.device)
        return Prototypes(zeros, zeros[:, 0].clone())

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        counts = Numbers((roster.classes,), 0.0, MOST_RECORDS)
        return {"prototypes": Numbers((roster.classes, self.embedding)), "counts": counts}

    def server_update(
        self, state: Prototypes, replies: Mapping[int, Message], roster: Roster, rng: Stream
    ) -> Prototypes:
        if not replies:
            return state
        sent = (torch.stack([reply.arrays[name] for reply in replies.values()]) for name in ("prototypes", "counts"))
        means, heard = joined(*sent)
        return Prototypes(torch.where(heard[:, None] > 0, means, state.prototypes), torch.maximum(heard, state.known))

    def broadcast(self, state: Prototypes, client: int) -> Message:
        return Message({"prototypes": state.prototypes, "known": state.known})


def embedded(model: ModelSettings, shape: tuple[int, ...], embedding: int, classes: int) -> nn.Module:
    """The architecture with `embedding` outputs, rectified, and a linear classifier on them."""
    return nn.Sequential(build(model, shape, embedding), nn.ReLU(), nn.Linear(embedding, classes))


@lru_cache(maxsize=16)
def _scratch(
    model: str, shape: tuple[int, ...], embedding: int, classes: int, seed: int, device: torch.device
) -> FlatNetwork:
    settings = TypeAdapter(ModelSettings).validate_json(model)
    return FlatNetwork(lambda: embedded(settings, shape, embedding, classes), Stream((seed, "scratch")).seed, device)
