"""Ditto (Li, Hu, Beirami, Smith 2021): a personal model beside the shared one, pulled towards it.

A round of client i, which has kept its personal model v_i and receives the server's w:

    w_i <- E local epochs on f_i from w;    v_i <- E local epochs on f_i(v) + lambda/2 ||v - w||^2 from v_i.

It sends w_i alone; the server averages, w <- sum_i (n_i / sum n) w_i. What happens to w is FedAvg, whatever lambda is;
with lambda = 0 personal models are trained alone, and the larger lambda, the nearer they stay to w.

Scored are v_i (personal) and w (global). A round costs twice FedAvg's. In the warm-up v_i starts at w. Unlike the
paper, both are trained by Adam, begun anew in each round, on the same minibatches, and the server always averages
weights: the paper's robust servers are not here.
"""

from collections.abc import Mapping

from pydantic import Field

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client
from fedbnn.methods.averaging import Averaging
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.models.training import Pull


@settings
class Ditto(PointModel, PointTraining, Averaging[Point]):
    """A shared model, and personal ones near it."""

    name = "ditto"
    summary = "personal models pulled towards an averaged one"
    regression = True

    strength: float = Field(default=0.1, ge=0, description="lambda, how strongly personal models are pulled")

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        shared, passes = message.arrays["weights"], client.training.passes(round_number)
        own = shared if round_number == 0 else state.weights
        trained, loss = self.train(shared, client, passes, rng)
        personal, _ = self.train(own, client, passes, rng, Pull(shared, self.strength))
        info = {"loss": loss, "drift": float((trained - shared).norm()), "apart": float((personal - shared).norm())}
        return Update(Point(personal), self.upload(trained, client), info)

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"personal": state, "global": Point(message.arrays["weights"])}
