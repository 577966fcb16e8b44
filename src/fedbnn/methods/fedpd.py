"""FedPD (Zhang, Hong, Dhople, Yin, Liu 2021): a primal-dual method, by a local augmented Lagrangian of the consensus.

Client i approaches the minimum of its augmented Lagrangian around the server's x, and moves its dual variable,

    w_i = argmin f_i(w) + <lambda_i, w - x> + 1/(2 eta) ||w - x||^2,    lambda_i <- lambda_i + (w_i - x) / eta,

and sends w_i + eta lambda_i; the server's x is the mean of what all clients sent last. With u_i = eta lambda_i that is

    w_i = argmin f_i(w) + 1/(2 eta) ||w - (x - u_i)||^2,    u_i <- u_i + w_i - x,    x <- 1/N sum_i (w_i + u_i).

It rests where all w_i = x and the lambda_i, each minus a gradient at x, sum to zero: at the optimum of the mean loss.

Scored are x (global) and each client's w_i (fine-tuned). The paper has everybody in every round: here a client that is
away counts with what it sent last. Its rounds without communication, by chance, are left out: here every round is an
exchange. The argmin is approached by Adam, begun anew in each round, as in every other method here.
"""

from pydantic import Field

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client
from fedbnn.methods.point import PointTraining
from fedbnn.methods.remembered import Carried, Remembering
from fedbnn.models.training import Pull


@settings
class FedPD(PointTraining, Remembering[Carried]):
    """Consensus of local models by dual variables."""

    name = "fedpd"
    summary = "a primal-dual method: local models joined by dual variables"
    client_state = Carried

    eta: float = Field(
        default=10.0, gt=0, description="step size of the dual variables; 1 / eta is the strength of the pull"
    )

    def client_init(self, client: Client) -> Carried:
        return Carried.of(client)

    def client_update(
        self, state: Carried, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Carried]:
        x = message.arrays["weights"]
        pull = Pull(x - state.carried, 1 / self.eta)
        weights, loss = self.train(x, client, client.training.passes(round_number), rng, pull)
        dual = state.carried + weights - x
        info = {"loss": loss, "drift": float((weights - x).norm()), "dual": float(dual.norm()) / self.eta}
        return Update(Carried(weights, dual), Message({"weights": weights + dual}), info)
