"""The client that methods share which learn from noisy sums of clipped gradients, at weights the server knows.

    S = sum_{r in batch} clip(grad_r, C) + N(0, z^2 C^2 I),      an estimate of the mean gradient is  S / (q M),

with each record in the batch with probability q, drawn afresh and in secret for each sum. M is a public number that
stands for a client's records: the true one would show in the size of the noise. Sums are whole numbers on a grid, as
all that leaves with noise (`privacy.sums`). The sums of a turn are one charge to the ledger, by the accountant of the
subsampled Gaussian mechanism (at q = 1 the exact one of the Gaussian). z follows from (epsilon, delta) and the rounds
that are planned, the warm-up one more of them; a round beyond these is refused.

Weights may follow from earlier sums of the turn: releases may be chosen by what others gave, and cost the same.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import State, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.own_budget import RESERVE, OwnBudget
from fedbnn.methods.point import Point, PointTraining
from fedbnn.privacy import Cost, Sampled, clipped_grid_sum, composed_mu, poisson_batch, subsampled_noise
from fedbnn.privacy.sums import LARGEST, UNIT, gap_of, with_noise

P = TypeVar("P", bound=Point)  # the client's state
V = TypeVar("V", bound=State)  # the server's

NoisySum = Callable[[], Tensor]
"""S at the weights that are in the client's network, as whole numbers in units of the grid, on the CPU."""


@settings
class NoisySums(PointTraining, OwnBudget[P, V]):
    """Its settings, what a turn costs, and how sums are made."""

    clip: float = Field(default=1.0, gt=0, le=LARGEST * UNIT, description="C: longest gradient of a record")
    sampling_rate: float = Field(
        default=0.5, gt=0, le=1, description="q: probability of a record to be in the batch of a sum"
    )
    records: int = Field(
        default=40,
        ge=1,
        description="M: a public number that stands for a client's records in the length of a step, about as many as "
        "clients have",
    )

    @property
    @abstractmethod
    def sums_in_turn(self) -> int:
        """How many sums a turn takes."""

    def releases(self, rounds: int) -> int:
        """How many sums a client makes in that many turns."""
        return rounds * self.sums_in_turn

    def noise_multiplier(self, rounds: int, multiplicity: int = 1) -> float:
        """The z for this many planned rounds and the warm-up, which counts like any other."""
        count, epsilon = self.releases(rounds + 1), self.epsilon * (1 - RESERVE)
        return subsampled_noise(epsilon, self.sampling_rate, count, self.delta, multiplicity)

    def replanned(self, before: int, now: int) -> str:
        """The noise of every round is that of the planned ones."""
        return "its noise is that of the planned rounds"

    def start_of(self, client: Client, message: Message, round_number: int) -> Tensor:
        """The weights that the server sent; a UserError, before anything is charged, where no turn is to be taken."""
        if round_number > client.rounds:
            raise UserError(
                f"the privacy budget of method '{self.name}' is for {client.rounds} rounds and is spent: round "
                f"{round_number} is refused"
            )
        for name, array in message.arrays.items():
            if array.shape != (client.network.size,):
                raise UserError(f"{name} of shape {tuple(array.shape)} were sent: {client.network.size} are needed")
        return message.arrays["weights"]

    def turn(
        self,
        client: Client,
        given: tuple[Tensor, ...],
        round_number: int,
        rng: Stream,
        work: Callable[[NoisySum], Tensor],
        kind: torch.dtype = torch.float32,
    ) -> Tensor:
        """What `work` makes of as many noisy sums as a turn takes, charged first; or what it made the first time.

        It may look at the records through these sums alone, and `given` is all else that it depends on.
        """
        z, noise = self.noise_multiplier(client.rounds, client.multiplicity), client.privacy.noise
        if self.noise == "seed":
            here = rng.on_cpu()  # where the operating system's randomness arrives, too
            generators = here.child("sample").torch(), here.child("noise").torch()
            return work(lambda: self.noisy_sum(client, z, *generators)).to(client.device)
        sums = self.sums_in_turn * client.multiplicity
        gap = gap_of(z * self.clip, client.network.size * sums, noise)
        if self.sampling_rate == 1:
            cost = Cost(composed_mu(z, sums), gap=gap)
        else:
            cost = Cost(sampled=(Sampled(z, self.sampling_rate, sums),), gap=gap)
        asked = {"round": round_number, "z": z}
        return self.charged(client, given, asked, cost, lambda: work(lambda: self.noisy_sum(client, z)), kind)

    def noisy_sum(
        self, client: Client, z: float, sample: torch.Generator | None = None, noise: torch.Generator | None = None
    ) -> Tensor:
        """S; generators decide on sample and noise where nothing is promised."""
        records = client.train
        # Amplification by sampling holds only for a sample nobody can foresee: it is as secret as the noise.
        batch = records.take(poisson_batch(len(records), self.sampling_rate, sample).to(client.device))
        total, _ = clipped_grid_sum(client.network, batch.x, batch.y, self.clip)
        return with_noise(total, z * self.clip, client.privacy.noise, noise)

    def scored(self, state: P, client: Client, message: Message, rng: Stream) -> Mapping[Variant, P]:
        """The server's model, and its copy after ordinary local training, which never leaves the client."""
        weights = message.arrays["weights"]
        tuned, _ = self.train(weights, client, client.training.local_epochs, rng.child("fine-tune"))
        return {"global": replace(state, weights=weights), "fine_tuned": replace(state, weights=tuned)}
