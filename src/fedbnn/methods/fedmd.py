"""FedMD (Li and Wang 2019): the exchange of FedBNN without Bayes, which isolates what the Bayesian part gives.

Each round a client first distils the consensus on the alignment set into its weights (`digest_steps` steps of
cross-entropy towards the same corrected target as FedBNN's), then trains on its own records.
"""

from pydantic import Field

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client, Update
from fedbnn.methods.consensus import Rule
from fedbnn.methods.exchange import Exchange
from fedbnn.methods.point import Point, PointTraining
from fedbnn.models.training import Records, fit_point, steps


@settings
class FedMD(PointTraining, Exchange[Point]):
    """Logit distillation on the alignment set between plain networks."""

    name = "fedmd"
    summary = "distillation of the consensus on the alignment set into plain networks"

    # Chosen on validation records (experiments/tune/mixed.toml), where they differ from what is best for FedBNN.
    gamma: float = with_default(Exchange, "gamma", 0.9)
    consensus: Rule = with_default(Exchange, "consensus", "sharpened")
    digest_steps: int = Field(default=100, ge=0, description="Adam steps towards the consensus in each round")
    digest_batch: int = Field(default=128, ge=1, description="alignment points in a minibatch of digestion")
    digest_learning_rate: float = Field(
        default=2e-3, gt=0, description="Adam's learning rate while digesting the consensus"
    )

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        weights, info = state.weights, {}
        if (phi_bar := message.get("phi_bar")) is not None:
            target = self.target(
                phi_bar, client, lambda: self.predict(state, client, client.alignment, rng.child("own"))
            )
            weights, info["digest_loss"] = fit_point(
                client.network,
                weights,
                steps(
                    Records(client.alignment, target),
                    self.digest_steps,
                    self.digest_batch,
                    rng.child("digest").torch(),
                    client.training.augment,
                ),
                learning_rate=self.digest_learning_rate,
                weight_decay=0.0,
            )
        weights, info["loss"] = self.train(weights, client, client.training.passes(round_number), rng)
        taught = self.taught(client) if state.taught is None else state.taught
        new = Point(weights, taught)
        sent = self.reply(
            client,
            message,
            round_number,
            lambda: self.predict(new, client, client.alignment, rng.child("upload")),
            taught,
        )
        return Update(new, sent, info)
