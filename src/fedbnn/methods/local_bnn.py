"""Local-BNN: every client trains its own Bayesian network alone. Shows what Bayes gives without the federation."""

from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client
from fedbnn.methods.alone import Alone
from fedbnn.methods.bayesian import BayesianTraining, Posterior
from fedbnn.models.regression import Answer


@settings
class LocalBNN(BayesianTraining, Alone[Posterior]):
    """Bayes by Backprop (Blundell et al. 2015) under the prior N(0, prior_sd^2); nothing is exchanged."""

    name = "local_bnn"
    partly_bayesian = True
    regression = True
    summary = "every client trains a Bayesian network alone"
    client_state = Posterior

    def client_init(self, client: Client) -> Posterior:
        return Posterior(self.initial_posterior(client).theta)

    def client_update(
        self, state: Posterior, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Posterior]:
        passes = client.training.passes(round_number)
        q, loss = self.train(state.q, self.alone_prior(client), client, passes, rng)
        return Update(Posterior(q.theta), Message(), {"loss": loss})

    def predict(self, state: Posterior, client: Client, x: Tensor, rng: Stream) -> Answer:
        return self.outputs(state.q, client, x, rng)
