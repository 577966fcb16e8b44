"""FedDF (Lin, Kong, Stich, Jaggi 2020): the server distils the ensemble of all clients into a student per architecture.

    target(x) = softmax(mean_i f(x; w_i))                  all clients, whatever their architecture
    student_a = argmin KL[target || softmax f_a] over AD, from the average of the weights of a's clients

Clients take their architecture's student, train it on their own records, and send the weights back. Scored are the
student (global) and the client's weights after local training (fine-tuned). The paper stops early by labelled
validation records, which a server without data does not have: ours keeps the student it began with unless distillation
brought it nearer to the target on AD.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec, records_form
from fedbnn.federation.method import Method, State
from fedbnn.federation.parties import Roster
from fedbnn.methods.averaging import SharedPoint, weighted_mean
from fedbnn.methods.point import Point
from fedbnn.models.bayes import logits_of
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, fit_point, steps


@dataclass(frozen=True)
class Students(State):
    """One student per architecture, one after the other in `weights`; client i's lies at spans[i] = (from, to)."""

    weights: Tensor
    spans: Tensor

    def of(self, client: int) -> Tensor:
        start, stop = self.spans[client].tolist()
        return self.weights[start:stop]


def divergence(target: Tensor, logits: Tensor) -> float:
    """Mean over points of KL[softmax(target) || softmax(logits)], in float64: exactly zero where the two agree."""
    wanted = target.double().log_softmax(1)
    return float((wanted.exp() * (wanted - logits.double().log_softmax(1))).sum(1).mean())


@settings
class Distilling:
    """A server that distils what clients say together into students, each from the mean of its clients' weights."""

    name: ClassVar[str]
    server_state = Students

    distill_steps: int = Field(default=100, ge=0, description="Adam steps of each student in each round")
    distill_batch: int = Field(default=128, ge=1, description="alignment points in a minibatch of distillation")
    distill_learning_rate: float = Field(default=1e-3, gt=0, description="Adam's learning rate while distilling")

    def server_init(self, roster: Roster) -> Students:
        if len(roster.alignment) == 0:
            raise UserError(f"method '{self.name}' distils on the alignment set: data.alignment must be at least 1")
        if len({model.body_key for model in roster.models}) > 1:
            raise UserError(
                f"method '{self.name}' distils at the server, where networks must see the same inputs: give all models "
                "one body, or none"
            )
        architectures = [model.architecture for model in roster.models]
        firsts = [architectures.index(one) for one in architectures]
        starts: dict[int, int] = {}
        students: list[Tensor] = []
        for first in dict.fromkeys(firsts):
            starts[first] = sum(len(student) for student in students)
            students.append(roster.initial_weights(first))
        sizes = [roster.network(first).size for first in firsts]
        spans = [(starts[first], starts[first] + size) for first, size in zip(firsts, sizes, strict=True)]
        return Students(torch.cat(students), torch.tensor(spans))

    def server_update(self, state: Students, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Students:
        if not replies:
            return state
        target = self.ensemble(replies, roster, rng)
        weights = state.weights.clone()
        new = replace(state, weights=weights)
        groups: dict[tuple[int, ...], list[int]] = {}
        for client, span in enumerate(state.spans.tolist()):
            groups.setdefault(tuple(span), []).append(client)
        for number, members in enumerate(groups.values()):
            heard = {client: replies[client] for client in members if client in replies}
            start = weighted_mean(heard)
            student = self.distil(
                roster.network(members[0]),
                state.of(members[0]) if start is None else start,
                roster.alignment,
                target,
                rng.child("distil", number),
            )
            new.of(members[0]).copy_(student)
        return new

    @abstractmethod
    def ensemble(self, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Tensor:
        """The target on the alignment set, as logits."""

    def distil(self, network: FlatNetwork, start: Tensor, alignment: Tensor, target: Tensor, rng: Stream) -> Tensor:
        """The student after distillation towards softmax(target), or `start` if that is nearer to it."""
        batches = steps(Records(alignment, target.softmax(1)), self.distill_steps, self.distill_batch, rng.torch())
        student = self.student(network, start, batches)
        before, after = (divergence(target, logits_of(network, w, alignment)) for w in (start, student))
        return student if after < before else start

    def student(self, network: FlatNetwork, start: Tensor, batches: Iterator[Records]) -> Tensor:
        """The weights that the steps of distillation lead to."""
        return fit_point(network, start, batches, learning_rate=self.distill_learning_rate, weight_decay=0.0)[0]

    def broadcast(self, state: Students, client: int) -> Message:
        return Message({"weights": state.of(client)})


@settings
class FedDF(Distilling, SharedPoint, Method[Point, Students]):
    """Ensemble distillation at the server."""

    name = "feddf"
    summary = "the server distils the ensemble of all clients into one student per architecture"

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {"weights": Numbers((roster.network(client).size,)), "records": records_form()}

    def ensemble(self, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Tensor:
        """The target on the alignment set, as logits."""
        outputs = [logits_of(roster.network(i), r.arrays["weights"], roster.alignment) for i, r in replies.items()]
        return torch.stack(outputs).mean(0)
