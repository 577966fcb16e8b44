"""DP-FedSGD: one noisy gradient of each client a round (McMahan et al. 2017, 2018), hiding each of its records.

    client   S_i = sum_{r in batch} clip(grad_r(w), C) + N(0, z^2 C^2 I)           at the server's weights w
    server   w <- w - rate * 1/|S| sum_{i in S} S_i / (q M),      S those who replied

with each record in the batch with probability q (1, all records, is FedSGD), and M a public number in the place of a
client's records (`methods.noisy_sums`, also for what is charged and refused). A turn is one sum, where DP-FedAvg takes
several steps: so much less noise lies on it for the same budget, and nothing that clients send drifts apart. What
leaves are the sums themselves, whole numbers on the grid, which add up exactly.

McMahan et al. (2018) clip the gradient of a client as a whole and let a trusted server add the noise; here records are
clipped and each client adds its own, as in DP-SGD (Abadi et al. 2016). Clients count alike instead of by their records,
whose number is not told. Scored are the server's model (global) and its copy after ordinary local training, which never
leaves the client (fine-tuned).
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import Integers, Message, UploadSpec
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.noisy_sums import NoisySum, NoisySums
from fedbnn.methods.point import Point, PointModel
from fedbnn.privacy.sums import RELEASED, UNIT


@settings
class DPFedSGD(NoisySums[Point, Global], PointModel, Averaging[Point]):
    """Gradient steps of the server with noisy sums of clipped gradients."""

    name = "dp_fedsgd"
    summary = "gradient steps of the server from one noisy sum of each client a round, which hides records"
    by_records = False

    sampling_rate: float = with_default(NoisySums, "sampling_rate", 1.0)
    rate: float = Field(default=1.0, gt=0, description="step size of the server")

    @property
    def mechanism(self) -> str:
        return "DP-FedSGD"

    @property
    def sums_in_turn(self) -> int:
        return 1

    def server_init(self, roster: Roster) -> Global:
        self.noise_multiplier(roster.rounds)  # a budget that no noise can meet, or no accountant, is told now
        return super().server_init(roster)

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        start = self.start_of(client, message, round_number)

        def summed(noisy: NoisySum) -> Tensor:
            client.network.weights.copy_(start)
            return noisy()

        total = self.turn(client, (start,), round_number, rng, summed, torch.int64)
        return Update(Point(start.clone()), Message({"sum": total}), {})

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {"sum": Integers((roster.network(client).size,), RELEASED)}

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        if not replies:
            return state
        mean = torch.stack([reply.arrays["sum"] for reply in replies.values()]).double().mean(0)
        step = mean * (UNIT * self.rate / (self.sampling_rate * self.records))
        return Global(state.weights - step.float())
