"""DP-SCAFFOLD (Noble, Bellet, Dieuleveut 2022), warm: SCAFFOLD whose gradients are noisy, which hides each record.

Client i takes K steps from the server's x with noisy gradients g_k = S_k / (q M) (`methods.noisy_sums`),

    y <- y - rate (g_k - c_i + c),    then    c_i <- h = 1/K sum_k g_k,    so that    y = x - rate K (h - c_i + c)

with the c_i of before; this h is what option II of SCAFFOLD gives, and the server is SCAFFOLD's (`methods.scaffold`).
Warm: in the warm-up round nobody moves, and c_i becomes the mean of K noisy gradients at x. The paper's other variant
begins with c_i = 0, as here does a client that misses the warm-up.

What leaves are y and c_i, and a control variate costs nothing beyond the K sums. A turn asks one thing of the records,
h, which is made of the K noisy sums and charged as these. y follows from h, from x and c, which the server sent, and
from the c_i of before, which by induction is zero or the h of an earlier turn. So all that ever leaves is worked out
from released h without another look at a record: post-processing. The code is just that: `turn` gives h and nothing
else, and what follows it has no records in it.

Differences from the paper: noise follows from (epsilon, delta), the planned rounds, and an exact or numerical
accountant, not from a bound by Renyi divergences; samples are Poisson's instead of a fixed number of records,
neighbours have one record more or less, and steps are divided by a public number; C is a setting; that a client takes
part by chance is not counted in favour of privacy, as the server knows who does. Clients send c_i instead of its
change. Scored are x (global) and its copy after ordinary local training, which never leaves the client (fine-tuned).
"""

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.noisy_sums import NoisySum, NoisySums
from fedbnn.methods.remembered import Carried, Remembered
from fedbnn.methods.scaffold import Scaffold
from fedbnn.privacy.sums import UNIT


@settings
class DPScaffold(NoisySums[Carried, Remembered], Scaffold):
    """Federated averaging whose noisy local steps are corrected by noisy control variates."""

    name = "dp_scaffold"
    summary = "SCAFFOLD with noisy local steps and control variates made of them, which hides records"
    regression = False

    rate: float = with_default(Scaffold, "rate", 0.25)
    steps: int = Field(default=5, ge=1, description="K, noisy steps in a round; in the warm-up, gradients at one place")

    @property
    def mechanism(self) -> str:
        return "DP-SCAFFOLD"

    @property
    def sums_in_turn(self) -> int:
        return self.steps

    def server_init(self, roster: Roster) -> Remembered:
        self.noise_multiplier(roster.rounds)  # a budget that no noise can meet, or no accountant, is told now
        return super().server_init(roster)

    def client_update(
        self, state: Carried, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Carried]:
        x, c = self.start_of(client, message, round_number), message.arrays["control"]
        correction, rate = c - state.carried, self.rate if round_number > 0 else 0.0

        def mean_gradient(noisy: NoisySum) -> Tensor:
            network = client.network
            network.weights.copy_(x)
            total = torch.zeros(network.size, dtype=torch.float64)
            for _ in range(self.steps):
                gradient = noisy().double() * (UNIT / (self.sampling_rate * self.records))
                total += gradient
                network.weights.sub_(gradient.float().to(client.device) + correction, alpha=rate)
            return (total / self.steps).float()

        control = self.turn(client, (x, c, state.carried), round_number, rng, mean_gradient)
        y = x - rate * self.steps * (control + correction)
        return Update(Carried(y, control), Message({"weights": y, "control": control}), {})
