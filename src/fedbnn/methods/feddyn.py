"""FedDyn (Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama 2021): dynamic regularisation.

Client i minimises its loss with a linear term, its memory g_i of the gradient where it stopped, and a pull,

    w_i = argmin f_i(w) - <g_i, w> + alpha/2 ||w - x||^2,    then    g_i <- g_i - alpha (w_i - x),

and where it is minimised exactly the new g_i is grad f_i(w_i). The server, with S those who replied and N all clients:

    h <- h - alpha/N sum_{i in S} (w_i - x),    x <- 1/|S| sum_{i in S} w_i - h / alpha.

With d_i = -g_i / alpha the linear term and the pull are one pull, towards x - d_i, and h is the mean of all g_i, so

    w_i = argmin f_i(w) + alpha/2 ||w - (x - d_i)||^2,    d_i <- d_i + w_i - x,    x <- 1/|S| sum_S w_i + 1/N sum_i d_i.

It rests where all w_i = x and the d_i, hence the gradients at x, sum to zero: at the optimum of the mean loss, whatever
alpha is. With everybody in every round it is FedPD with eta = 1 / alpha.

Scored are x (global) and each client's w_i (fine-tuned). Unlike the paper, the argmin is approached by Adam, begun anew
in each round, as in every other method here; and clients also send d_i, so that a reply that is lost does no lasting
harm.
"""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.point import PointTraining
from fedbnn.methods.remembered import Carried, Remembered, Remembering, plain_mean
from fedbnn.models.training import Pull


@settings
class FedDyn(PointTraining, Remembering[Carried]):
    """Federated averaging of models whose regularisation learns what each client's loss lacks."""

    name = "feddyn"
    summary = "FedAvg with dynamic regularisation, by a memory of each client's gradient"
    client_state = Carried

    alpha: float = Field(
        default=0.01, gt=0, description="strength of the pull; small: far local training and a long memory"
    )

    def client_init(self, client: Client) -> Carried:
        return Carried.of(client)

    def client_update(
        self, state: Carried, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Carried]:
        x = message.arrays["weights"]
        pull = Pull(x - state.carried, self.alpha)
        weights, loss = self.train(x, client, client.training.passes(round_number), rng, pull)
        drift = state.carried + weights - x
        info = {"loss": loss, "drift": float((weights - x).norm()), "memory": self.alpha * float(drift.norm())}
        return Update(Carried(weights, drift), Message({"weights": weights, "drift": drift}), info)

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        size = roster.network(client).size
        return {"weights": Numbers((size,)), "drift": Numbers((size,))}

    def server_update(
        self, state: Remembered, replies: Mapping[int, Message], roster: Roster, rng: Stream
    ) -> Remembered:
        if not replies:
            return state
        now = state.with_replies(replies, "drift")
        return replace(now, weights=plain_mean(replies) + now.mean_of_all)
