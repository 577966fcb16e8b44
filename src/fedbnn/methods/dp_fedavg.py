"""DP-FedAvg: federated averaging with differential privacy (McMahan, Ramage, Talwar, Zhang 2018; Abadi et al. 2016).

Record level (the default): what a client sends hides each of its records, also from the server. Clients run DP-SGD,

    w <- w - rate * (sum_{r in batch} clip(grad_r, C) + N(0, z^2 C^2 I)) / (q n),

with each record in the batch with probability q, and the server averages with equal weights (n_i would give the number
of records away). Every local step is counted, by the accountant of the subsampled Gaussian mechanism; q n is the
expected batch, whatever the batch drawn.

User level: the averaged model hides whether a client took part at all, from everybody but the server, which is trusted
to add the noise:  w <- w + (sum_i clip(w_i - w, C) + N(0, z^2 C^2 I)) / N,  with N the number of all clients, however
many replied, and no amplification by who takes part.

z follows from (epsilon, delta) and the rounds that are planned; a round beyond these is refused. Scored are the global
model, and its copy after ordinary local training on the client's records (fine-tuned), which never leaves the client.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client, Roster, Update, Variant
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.privacy import (
    Guarantee,
    clipped_sum,
    gaussian_epsilon,
    gaussian_noise,
    noise_multiplier,
    poisson_batch,
    subsampled_epsilon,
    subsampled_noise,
)


def clip_update(update: Tensor, clip: float) -> Tensor:
    """The update, scaled down to length `clip` if it is longer."""
    # Shortened by a hair more, so that rounding cannot make it longer than `clip`.
    return update * min(1.0, clip * (1 - 1e-6) / max(float(update.norm()), 1e-30))


@settings
class DPFedAvg(PointModel, PointTraining, Averaging[Point]):
    """Averaging of weights under differential privacy."""

    name = "dp_fedavg"
    summary = "FedAvg under differential privacy, of records (default) or of whole clients"
    by_records = False
    needs_protection = False  # has its own, and its own budget

    level: Literal["record", "user"] = Field(
        default="record",
        description="what is hidden: each record of a client (record), or the client as a whole (user)",
    )
    epsilon: float = Field(
        default=3.0, gt=0, description="privacy budget of the whole run, from which the noise follows"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="probability that is exempt; far below 1 / records")
    clip: float = Field(
        default=1.0,
        gt=0,
        description="C: longest gradient of a record (record level) or update of a client (user level)",
    )
    steps: int = Field(default=5, ge=1, description="DP-SGD steps in a round (record level)")
    sampling_rate: float = Field(
        default=0.5, gt=0, le=1, description="probability of a record to be in a step's batch (record level)"
    )
    private_rate: float = Field(default=0.25, gt=0, description="step size of DP-SGD (record level)")
    noise: Literal["system", "seed"] = Field(
        default="system",
        description="where noise comes from: system (the operating system's randomness), or seed (repeatable, for "
        "experiments only: who knows the seed can take the noise away)",
    )

    def releases(self, rounds: int) -> int:
        """How many noisy steps a client takes, or is part of, in that many turns."""
        return rounds * (self.steps if self.level == "record" else 1)

    def noise_multiplier(self, rounds: int) -> float:
        """The z for this many planned rounds and the warm-up, which counts like any other."""
        count = self.releases(rounds + 1)
        if self.level == "user":
            return noise_multiplier(self.epsilon, self.delta, count)
        return subsampled_noise(self.epsilon, self.sampling_rate, count, self.delta)

    def privacy_spent(self, client: Client, turns: int) -> Guarantee:
        z, count = self.noise_multiplier(client.rounds), self.releases(turns)
        if self.level == "user":
            return Guarantee(gaussian_epsilon(math.sqrt(count) / z, self.delta), self.delta, "client", "DP-FedAvg")
        spent = subsampled_epsilon(z, self.sampling_rate, count, self.delta, client.multiplicity)
        return Guarantee(spent, self.delta, "record", "DP-SGD")

    def server_init(self, roster: Roster) -> Global:
        if self.level == "user" and self.delta >= 1 / roster.clients:
            raise UserError(
                f"methods.dp_fedavg.delta = {self.delta}: a delta of 1 / {roster.clients} or more protects none "
                f"of {roster.clients} clients; choose a smaller one"
            )
        self.noise_multiplier(roster.rounds)  # a budget that no noise can meet, or no accountant, is told now
        return super().server_init(roster)

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        if self.level == "record" and self.delta >= 1 / len(client.train):
            raise UserError(
                f"methods.dp_fedavg.delta = {self.delta}: client '{client.name}' has {len(client.train)} records, and "
                f"a delta of 1 / {len(client.train)} or more protects none of them; choose a smaller one"
            )

    def client_init(self, client: Client) -> Point:
        self.check_client(client)
        return super().client_init(client)

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        if round_number > client.rounds:
            raise UserError(
                f"the privacy budget of method '{self.name}' is for {client.rounds} rounds and is spent: round "
                f"{round_number} is refused"
            )
        start = message.arrays["weights"]
        if self.level == "user":
            weights, loss = self.train(start, client, client.training.passes(round_number), rng)
            update = clip_update(weights - start, self.clip)
            return Update(Point(weights), Message({"weights": update}), {"loss": loss, "sent": float(update.norm())})
        weights, norms = self.private_training(start, client, rng)
        clipped = float((norms > self.clip).float().mean()) if len(norms) else 0.0
        return Update(Point(weights), Message({"weights": weights}), {"clipped": clipped})

    def private_training(self, start: Tensor, client: Client, rng: Stream) -> tuple[Tensor, Tensor]:
        """DP-SGD from `start`; the weights reached, and the norms of all gradients before clipping."""
        network, records = client.network, client.train
        network.module.train()
        network.weights.copy_(start)
        expected = self.sampling_rate * len(records)
        sd = self.noise_multiplier(client.rounds) * self.clip
        # Amplification by sampling holds only for a sample nobody can foresee: it is as secret as the noise.
        here = rng.on_cpu()  # where the operating system's randomness arrives, too
        sample, noise = (
            (here.child("sample").torch(), here.child("noise").torch()) if self.noise == "seed" else (None, None)
        )
        norms = []
        for _ in range(self.steps):
            batch = records.take(poisson_batch(len(records), self.sampling_rate, sample).to(client.device))
            total, lengths = clipped_sum(network, batch.x, batch.y, self.clip)
            total += gaussian_noise(network.size, sd, noise).to(client.device)
            network.weights.sub_(total, alpha=self.private_rate / expected)
            norms.append(lengths)
        return network.weights.clone(), torch.cat(norms)

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        weights = message.arrays["weights"]
        tuned, _ = self.train(weights, client, client.training.local_epochs, rng.child("fine-tune"))
        return {"global": Point(weights), "fine_tuned": Point(tuned)}

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        if self.level == "record":
            return super().server_update(state, replies, roster, rng)
        # The server clips again: it answers for the guarantee, and a client might not have.
        updates = [clip_update(reply.arrays["weights"], self.clip) for reply in replies.values()]
        sd = self.noise_multiplier(roster.rounds) * self.clip
        generator = rng.child("noise").torch() if self.noise == "seed" else None
        total = sum(updates, gaussian_noise(len(state.weights), sd, generator))
        return Global(state.weights + total / roster.clients)
