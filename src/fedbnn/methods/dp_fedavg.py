"""DP-FedAvg: federated averaging with differential privacy (McMahan, Ramage, Talwar, Zhang 2018; Abadi et al. 2016).

Record level (the default): what a client sends hides each of its records, also from the server. Clients run DP-SGD,

    w <- w - rate * (sum_{r in batch} clip(grad_r, C) + N(0, z^2 C^2 I)) / (q M),

with each record in the batch with probability q, and the server averages with equal weights. M is a public number that
stands for a client's records: the true one would show in the size of the noise, which is sent with the weights. Sums
are whole numbers on a grid, as all that leaves with noise (`privacy.sums`). A turn of a client is one release of
`steps` steps, charged to its ledger as such by the accountant of the subsampled Gaussian mechanism.

User level: the averaged model hides whether a client took part at all, from everybody but the server, which is trusted
to add the noise and charges it to a ledger of its own:  w <- w + (sum_i clip(w_i - w, C) + N(0, z^2 C^2 I)) / N,  with
N the number of all clients, however many replied, and no amplification by who takes part.

z follows from (epsilon, delta) and the rounds that are planned; a round beyond these is refused. Scored are the global
model, and its copy after ordinary local training on the client's records (fine-tuned), which never leaves the client.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.features.public import digest_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client, Promise, Roster, Update, Variant
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.privacy import (
    Budget,
    Cost,
    Guarantee,
    PrivacySettings,
    Sampled,
    clipped_grid_sum,
    composed_mu,
    gaussian_epsilon,
    noise_multiplier,
    poisson_batch,
    subsampled_noise,
)
from fedbnn.privacy.sums import LARGEST, UNIT, gap_of, grid_sum, with_noise

_RESERVE = 1e-4  # of epsilon: room for the gap of discrete noise, and for another grid of the accountant


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
        le=LARGEST * UNIT,
        description="C: longest gradient of a record (record level) or update of a client (user level)",
    )
    steps: int = Field(default=5, ge=1, description="DP-SGD steps in a round (record level)")
    sampling_rate: float = Field(
        default=0.5, gt=0, le=1, description="probability of a record to be in a step's batch (record level)"
    )
    records: int = Field(
        default=40,
        ge=1,
        description="M: a public number that stands for a client's records in the length of a step, about as many as "
        "clients have (record level)",
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

    def noise_multiplier(self, rounds: int, multiplicity: int = 1) -> float:
        """The z for this many planned rounds and the warm-up, which counts like any other."""
        count, epsilon = self.releases(rounds + 1), self.epsilon * (1 - _RESERVE)
        if self.level == "user":
            return noise_multiplier(epsilon, self.delta, count)
        return subsampled_noise(epsilon, self.sampling_rate, count, self.delta, multiplicity)

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)

    def protects(self, privacy: PrivacySettings) -> Promise | None:
        """Nothing with noise that a seed decides: whoever knows the seed takes it away."""
        if self.noise == "seed":
            return None
        return Promise(self.budget, "record" if self.level == "record" else "client")

    def replanned(self, before: int, now: int) -> str:
        """The noise of every round is that of the planned ones."""
        return "its noise is that of the planned rounds"

    def privacy_spent(self, client: Client, turns: int) -> Guarantee | None:
        if self.noise == "seed":
            return None
        if self.level == "record":
            return client.account(self.budget).guarantee("DP-SGD")
        mu = composed_mu(self.noise_multiplier(client.rounds), self.releases(turns))
        return Guarantee(gaussian_epsilon(mu, self.delta), self.delta, "client", "DP-FedAvg")

    def check_deployed(self) -> None:
        if self.noise == "seed":
            raise UserError(
                f"methods.{self.name}.noise = 'seed' is for experiments on one machine: whoever knows the terms knows "
                "the seed, and can take the noise away; only 'system' is allowed here"
            )

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
        if start.shape != (client.network.size,):  # before anything is charged
            raise UserError(f"weights of shape {tuple(start.shape)} were sent: {client.network.size} are needed")
        if self.level == "user":
            weights, loss = self.train(start, client, client.training.passes(round_number), rng)
            update = clip_update(weights - start, self.clip)
            return Update(Point(weights), Message({"weights": update}), {"loss": loss, "sent": float(update.norm())})
        weights = self.private_weights(start, client, round_number, rng)
        return Update(Point(weights), Message({"weights": weights}), {})

    def private_weights(self, start: Tensor, client: Client, round_number: int, rng: Stream) -> Tensor:
        """The weights after a turn of DP-SGD: charged and worked out, or those of the first time."""
        z, kind = self.noise_multiplier(client.rounds, client.multiplicity), client.privacy.noise
        if self.noise == "seed":
            return self.private_training(start, client, z, rng)
        steps = self.steps * client.multiplicity
        gap = gap_of(z * self.clip, len(start) * steps, kind)
        if self.sampling_rate == 1:
            cost = Cost(composed_mu(z, steps), gap=gap)
        else:
            cost = Cost(sampled=(Sampled(z, self.sampling_rate, steps),), gap=gap)
        asked = {"round": round_number, "model": asdict(client.model), "noise": kind, "z": z, **asdict(self)}
        account = client.account(self.budget)
        question = digest_of("DP-SGD", start.cpu(), json.dumps(asked, sort_keys=True))
        data = account.release(question, cost, lambda: self.private_training(start, client, z).cpu().numpy().tobytes())
        return torch.frombuffer(bytearray(data), dtype=torch.float32).to(client.device)

    def private_training(self, start: Tensor, client: Client, z: float, seeded: Stream | None = None) -> Tensor:
        """DP-SGD from `start`; `seeded` decides on samples and noise where nothing is promised."""
        network, records = client.network, client.train
        network.weights.copy_(start)
        expected = self.sampling_rate * self.records
        sd = z * self.clip
        # Amplification by sampling holds only for a sample nobody can foresee: it is as secret as the noise.
        here = seeded and seeded.on_cpu()  # where the operating system's randomness arrives, too
        sample, noise = (here.child("sample").torch(), here.child("noise").torch()) if here else (None, None)
        for _ in range(self.steps):
            batch = records.take(poisson_batch(len(records), self.sampling_rate, sample).to(client.device))
            total, _ = clipped_grid_sum(network, batch.x, batch.y, self.clip)
            noisy = with_noise(total, sd, client.privacy.noise, noise)
            step = noisy.double() * (UNIT * self.private_rate / expected)
            network.weights.sub_(step.float().to(client.device))
        return network.weights.clone()

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        weights = message.arrays["weights"]
        tuned, _ = self.train(weights, client, client.training.local_epochs, rng.child("fine-tune"))
        return {"global": Point(weights), "fine_tuned": Point(tuned)}

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        if self.level == "record":
            return super().server_update(state, replies, roster, rng)
        z, kind = self.noise_multiplier(roster.rounds), roster.privacy.noise
        sd = z * self.clip

        # The server clips again: it answers for the guarantee, and a client might not have.
        updates = [clip_update(reply.arrays["weights"].double(), self.clip) for reply in replies.values()]
        total = sum((grid_sum(update[None]) for update in updates), torch.zeros(len(state.weights), dtype=torch.int64))
        if self.noise == "seed":
            noisy = with_noise(total, sd, kind, rng.child("noise").torch())
        else:
            # In a simulation, other data under the same names is another question. Among sites the run tells them
            # apart, and a round that is held again has the answer of the first time, whoever replies now.
            about = "" if roster.run else digest_of(total)
            question = digest_of("DP-FedAvg", about, state.weights, repr(rng.path), self.clip, sd, kind)
            cost = Cost(1 / z, gap=gap_of(sd, len(state.weights), kind))
            data = roster.account(self.budget).release(
                question, cost, lambda: with_noise(total, sd, kind).numpy().tobytes()
            )
            noisy = torch.frombuffer(bytearray(data), dtype=torch.int64)
        return Global(state.weights + (noisy.double() * (UNIT / roster.clients)).float())
