"""FedAvg (McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017): clients train the server's model, the server averages.

    w_i <- E local epochs on client i's records from w;    w <- sum_i (n_i / sum n) w_i

Where clients may lie, `robust` puts something else than the mean; what clients say of their number of records, which
would be a lie as well, has no part in it then:

- trimmed   mean of each weight without its floor(share N) smallest and largest ones   (Yin et al. 2018)
- krum      multi-Krum (Blanchard, El Mhamdi, Guerraoui, Stainer 2017): with f liars expected among N, the mean of those
            N - f clients whose N - f - 2 nearest others are nearest, by the sum of squared distances

Scored are the average (global), and each client's w_i before it is averaged (fine-tuned: the global model of the round
before, after the client's local training). Unlike the paper, clients use Adam, begun anew in each round, so that local
training costs and does the same as in every other method here.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.methods.averaging import Averaging, Global, SharedPoint
from fedbnn.methods.point import Point
from fedbnn.methods.robust import krum, trimmed


@settings
class FedAvg(SharedPoint, Averaging[Point]):
    """Federated averaging of one network's weights."""

    name = "fedavg"
    summary = "the average of all clients' weights, one architecture"
    regression = True

    robust: Literal["none", "krum", "trimmed"] = Field(
        default="none",
        description="what stands for the mean where clients may lie: none (the mean itself), krum (mean of clients "
        "that have near neighbours) or trimmed (mean of each weight without the extremes)",
    )
    liars: float = Field(
        default=0.3,
        ge=0,
        lt=0.5,
        description="share of the clients that may lie: krum leaves as many out, trimmed as many at either end",
    )

    def server_update(self, state: Global, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Global:
        if self.robust == "none" or not replies:
            return super().server_update(state, replies, roster, rng)
        weights = torch.stack([reply.arrays["weights"] for reply in replies.values()])
        return Global(krum(weights, self.liars) if self.robust == "krum" else trimmed(weights, self.liars))
