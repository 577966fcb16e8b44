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

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.features.public import digest_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.noisy_sums import NoisySum, NoisySums
from fedbnn.methods.own_budget import RESERVE
from fedbnn.methods.point import Point, PointModel
from fedbnn.privacy import Cost, Guarantee, composed_mu, gaussian_epsilon, noise_multiplier
from fedbnn.privacy.sums import UNIT, gap_of, grid_sum, with_noise


def clip_update(update: Tensor, clip: float) -> Tensor:
    """The update, scaled down to length `clip` if it is longer."""
    # Shortened by a hair more, so that rounding cannot make it longer than `clip`.
    return update * min(1.0, clip * (1 - 1e-6) / max(float(update.norm()), 1e-30))


@settings
class DPFedAvg(NoisySums[Point, Global], PointModel, Averaging[Point]):
    """Averaging of weights under differential privacy."""

    name = "dp_fedavg"
    summary = "FedAvg under differential privacy, of records (default) or of whole clients"
    by_records = False

    level: Literal["record", "user"] = Field(
        default="record",
        description="what is hidden: each record of a client (record), or the client as a whole (user), for which clip "
        "is of a client's update, and steps, sampling_rate, records and private_rate have no meaning",
    )
    steps: int = Field(default=5, ge=1, description="DP-SGD steps in a round")
    private_rate: float = Field(default=0.25, gt=0, description="step size of DP-SGD")

    @property
    def mechanism(self) -> str:
        return "DP-SGD" if self.level == "record" else "DP-FedAvg"

    @property
    def sums_in_turn(self) -> int:
        """Noisy steps that a client takes, or is part of."""
        return self.steps if self.level == "record" else 1

    def noise_multiplier(self, rounds: int, multiplicity: int = 1) -> float:
        if self.level == "user":  # a client is hidden with all of its records, whoever else has them
            return noise_multiplier(self.epsilon * (1 - RESERVE), self.delta, self.releases(rounds + 1))
        return super().noise_multiplier(rounds, multiplicity)

    @property
    def unit(self) -> Literal["record", "client"]:
        return "record" if self.level == "record" else "client"

    def privacy_spent(self, client: Client, turns: int) -> Guarantee | None:
        if self.noise == "seed" or self.level == "record":
            return super().privacy_spent(client, turns)
        mu = composed_mu(self.noise_multiplier(client.rounds), self.releases(turns))
        return Guarantee(gaussian_epsilon(mu, self.delta), self.delta, "client", self.mechanism)

    def server_init(self, roster: Roster) -> Global:
        if self.level == "user" and self.delta >= 1 / roster.clients:
            raise UserError(
                f"methods.{self.name}.delta = {self.delta}: a delta of 1 / {roster.clients} or more protects none "
                f"of {roster.clients} clients; choose a smaller one"
            )
        self.noise_multiplier(roster.rounds)  # a budget that no noise can meet, or no accountant, is told now
        return super().server_init(roster)

    def client_init(self, client: Client) -> Point:
        self.check_client(client)
        return super().client_init(client)

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        start = self.start_of(client, message, round_number)
        if self.level == "user":
            weights, loss = self.train(start, client, client.training.passes(round_number), rng)
            update = clip_update(weights - start, self.clip)
            return Update(Point(weights), Message({"weights": update}), {"loss": loss, "sent": float(update.norm())})

        def dp_sgd(noisy: NoisySum) -> Tensor:
            network = client.network
            network.weights.copy_(start)
            for _ in range(self.steps):
                step = noisy().double() * (UNIT * self.private_rate / (self.sampling_rate * self.records))
                network.weights.sub_(step.float().to(client.device))
            return network.weights.clone()

        weights = self.turn(client, (start,), round_number, rng, dp_sgd)
        return Update(Point(weights), Message({"weights": weights}), {})

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
