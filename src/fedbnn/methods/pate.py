"""PATE (Papernot et al. 2017, 2018), local: each client's teachers vote on public points, and noisy counts leave.

A client splits its records into T parts, trains a teacher on each, and lets them vote at m points of the alignment set:

    V_i = counts of the votes [m, classes] + N(0, 2 m z^2 I),    label(a) = argmax_c sum_i V_i(a, c)

The server adds the counts of all clients (whole numbers on the grid, `privacy.sums`), and every client's own network,
of any architecture, is distilled to the labels at these points, then trained on its own records, round for round.
Networks and teachers never leave. Scored is the client's network (personal).

Sensitivity. A record's part follows from its own content, so one record more or less changes what one teacher is
trained on, and no other: teachers begin alike, and the randomness of each is its own. So at each point at most one vote
moves from one class to another, or appears, where a part was empty, which does not vote. Counts at a point change by
e_b - e_a, or e_b, at most sqrt(2) in Euclidean norm, and all of them together by at most sqrt(2 m). That is met where a
record turns its teacher around at every point. The counts are one Gaussian release of noise multiplier z, charged once,
by the exact accountant, before a teacher is trained; whatever is made of them later, in any number of rounds, is free.

This is not the papers' PATE. There a trusted aggregator sees all teachers' votes, hundreds on each point, adds one
noise, and is charged by how clearly they agree (data-dependent Renyi bounds; GNMax, and Confident-GNMax, which answers
only where they do). Here nobody is trusted: every client adds the whole noise to a few votes of its own, so that
sqrt(N) times as much lies on the sum over N clients as one aggregator would add, points are paid for whether teachers
agree or not, and only few can be asked about. It needs many clients, and records enough for several teachers of each.
Students are personal and see their own records; the papers' see public points alone.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.base.settings import settings
from fedbnn.federation.message import Integers, Message, UploadSpec
from fedbnn.federation.method import State, Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.own_budget import RESERVE, OwnBudget
from fedbnn.methods.point import Point, PointTraining, point_outputs
from fedbnn.models.bayes import logits_of
from fedbnn.models.regression import Answer
from fedbnn.models.training import Records, fit_point, steps, take_rows
from fedbnn.privacy import Cost, composed_mu, noise_multiplier, onto_simplex, simplex_sensitivity
from fedbnn.privacy.sums import RELEASED, UNIT, gap_of, with_noise


@dataclass(frozen=True)
class Student(Point):
    """A client's own network, and its noisy counts once they are made."""

    votes: Tensor | None = None  # points x classes, in units


@dataclass(frozen=True)
class Polled(State):
    """What each client's teachers voted."""

    votes: Tensor  # clients x points x classes, in units; zeros for a client that has sent nothing yet
    heard: Tensor  # clients: whether it has


def part_of(x: Tensor, y: Tensor, parts: int) -> int:
    """Which part a record is in, by its content alone."""
    digest = hashlib.sha256(x.cpu().numpy().tobytes() + y.cpu().numpy().tobytes()).digest()
    return int.from_bytes(digest[:8], "little") % parts


@settings
class Pate(PointTraining, OwnBudget[Student, Polled]):
    """Distillation of what noisy counts of teachers' votes say."""

    name = "pate"
    summary = "each client's teachers vote on alignment points; noisy counts leave, and students learn what they say"
    client_state = Student
    server_state = Polled

    teachers: int = Field(default=4, ge=1, le=2**20, description="T, parts of a client's records, and teachers")
    points: int = Field(
        default=20,
        ge=1,
        description="m, alignment points that teachers vote on, spread over the set; as many as there are, if fewer. "
        "Noise grows with its root",
    )
    teacher_epochs: int = Field(default=50, ge=0, description="passes of a teacher over its part")
    target: Literal["winner", "shares"] = Field(
        default="winner",
        description="what students learn at a point: the class with most votes, or each one's share of the votes (put "
        "on the simplex)",
    )
    digest_steps: int = Field(default=50, ge=0, description="Adam steps towards the labels in each round")
    digest_batch: int = Field(default=128, ge=1, description="alignment points in a minibatch of these")
    digest_learning_rate: float = Field(default=2e-3, gt=0, description="Adam's learning rate in these")

    @property
    def mechanism(self) -> str:
        return "PATE"

    def asked(self, alignment: Tensor) -> Tensor:
        """The points that are voted on."""
        count = min(self.points, len(alignment))
        index = torch.arange(count) * len(alignment) // count
        return take_rows(alignment, index.to(alignment.device))

    def counts(self, client: Client, rng: Stream) -> Tensor:
        """How often each class is voted for at the points [m, classes], before any noise."""
        asked, records = self.asked(client.alignment), client.train
        parts = [part_of(x, y, self.teachers) for x, y in zip(records.x, records.y, strict=True)]
        total = torch.zeros(len(asked), client.classes, dtype=torch.int64)
        for number in range(self.teachers):
            index = [record for record, part in enumerate(parts) if part == number]
            if not index:
                continue
            own = rng.child("teacher", number)
            with repeatable(own):  # also dropout: draws for one teacher, as many as it has records, move no other's
                pupil = replace(client, train=records.take(torch.tensor(index).to(client.device)))
                weights, _ = self.train(client.initial_weights(), pupil, self.teacher_epochs, own)
            chosen = logits_of(client.network, weights, asked).argmax(1)
            total += one_hot(chosen.cpu(), client.classes)
        return total

    def polled(self, client: Client, rng: Stream) -> Tensor:
        """The noisy counts, in units: charged and made, or those of the first time."""
        asked, kind = self.asked(client.alignment), client.privacy.noise
        z = noise_multiplier(self.epsilon * (1 - RESERVE), self.delta, 1, client.multiplicity)
        sd = z * simplex_sensitivity(len(asked))

        def noisy(generator: torch.Generator | None = None) -> Tensor:
            return with_noise(self.counts(client, rng) * round(1 / UNIT), sd, kind, generator)

        if self.noise == "seed":
            return noisy(rng.on_cpu().child("noise").torch()).to(client.device)
        gap = gap_of(sd, len(asked) * client.classes * client.multiplicity, kind)
        cost = Cost(composed_mu(z, client.multiplicity), gap=gap)
        votes = self.charged(client, (asked,), {"z": z}, cost, noisy, torch.int64)
        return votes.view(len(asked), client.classes)

    def client_update(
        self, state: Student, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Student]:
        weights, info, labels = state.weights, {}, message.get("labels")
        if labels is not None:
            weights, info["digest_loss"] = self.digest(weights, labels, client, rng)
        weights, info["loss"] = self.train(weights, client, client.training.passes(round_number), rng)
        votes = self.polled(client, rng) if state.votes is None else state.votes
        return Update(Student(weights, votes), Message({"votes": votes}), info)

    def digest(self, weights: Tensor, labels: Tensor, client: Client, rng: Stream) -> tuple[Tensor, float]:
        """The weights after distillation of the labels at the points that were voted on, and the last loss."""
        asked = self.asked(client.alignment)
        if labels.shape != (len(asked), client.classes):
            raise UserError(
                f"labels of shape {tuple(labels.shape)} were sent: {(len(asked), client.classes)} are needed"
            )
        generator, augment = rng.child("digest").torch(), client.training.augment
        batches = steps(Records(asked, labels), self.digest_steps, self.digest_batch, generator, augment)
        rate = self.digest_learning_rate
        return fit_point(client.network, weights, batches, learning_rate=rate, weight_decay=0.0)

    def client_init(self, client: Client) -> Student:
        return Student(client.initial_weights())

    def predict(self, state: Student, client: Client, x: Tensor, rng: Stream) -> Answer:
        return point_outputs(state.weights, client, x)

    def server_init(self, roster: Roster) -> Polled:
        if len(roster.alignment) == 0:
            raise UserError(f"method '{self.name}' votes on the alignment set: data.alignment must be at least 1")
        shape = (roster.clients, len(self.asked(roster.alignment)), roster.classes)
        return Polled(torch.zeros(shape, dtype=torch.int64), torch.zeros(roster.clients, dtype=torch.bool))

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {"votes": Integers((len(self.asked(roster.alignment)), roster.classes), RELEASED)}

    def server_update(self, state: Polled, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Polled:
        votes, heard = state.votes.clone(), state.heard.clone()
        for client, reply in replies.items():
            votes[client], heard[client] = reply.arrays["votes"], True
        return Polled(votes, heard)

    def without(self, state: Polled, client: int) -> Polled:
        votes, heard = state.votes.clone(), state.heard.clone()
        votes[client], heard[client] = 0, False
        return Polled(votes, heard)

    def broadcast(self, state: Polled, client: int) -> Message:
        """The labels, as class probabilities, once anybody has voted."""
        if not bool(state.heard.any()):
            return Message()
        mean = state.votes[state.heard].double().mean(0) * UNIT
        if self.target == "winner":
            return Message({"labels": one_hot(mean.argmax(1), mean.shape[1]).float()})
        return Message({"labels": onto_simplex(mean / self.teachers).float()})
