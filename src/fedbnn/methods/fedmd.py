"""FedMD (Li and Wang 2019): the exchange of FedBNN without Bayes, which isolates what the Bayesian part gives.

Each round a client first distils the consensus on the alignment set into its weights (`digest_steps` steps of
cross-entropy towards the same corrected target as FedBNN's), then trains on its own records.
"""

from dataclasses import dataclass
from functools import partial

from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client
from fedbnn.methods.consensus import Rule
from fedbnn.methods.exchange import Exchange, ExchangeState
from fedbnn.methods.point import Point, PointTraining, point_outputs
from fedbnn.models.regression import Answer
from fedbnn.models.training import fit_point, steps


@dataclass(frozen=True)
class FedMDState(ExchangeState, Point):
    """A client's weights, and what its mechanism keeps."""


@settings
class FedMD(PointTraining, Exchange[FedMDState]):
    """Logit distillation on the alignment set between plain networks."""

    name = "fedmd"
    summary = "distillation of the consensus on the alignment set into plain networks"
    client_state = FedMDState

    # Chosen on validation records (experiments/tune/mixed.toml), where they differ from what is best for FedBNN.
    gamma: float = with_default(Exchange, "gamma", 0.9)
    consensus: Rule = with_default(Exchange, "consensus", "sharpened")
    digest_steps: int = Field(default=100, ge=0, description="Adam steps towards the consensus in each round")
    digest_batch: int = Field(default=128, ge=1, description="alignment points in a minibatch of digestion")
    digest_learning_rate: float = Field(
        default=2e-3, gt=0, description="Adam's learning rate while digesting the consensus"
    )

    def client_init(self, client: Client) -> FedMDState:
        return FedMDState(client.initial_weights())

    def client_update(
        self, state: FedMDState, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[FedMDState]:
        if self.exchange_of(client, message) > 0:
            phi = partial(point_outputs, state.weights, client, client.alignment)
            return self.replied(state, client, message, round_number, phi, {})
        weights, info = state.weights, {}
        told, asked = self.told(client, message), self.asked(client, message)
        target = self.target(message, told, partial(point_outputs, weights, told, told.alignment))
        if target is not None:
            weights, info["digest_loss"] = self.digest(weights, target, told, rng)
        weights, info["loss"] = self.train(weights, client, client.training.passes(round_number), rng)
        new = FedMDState(weights)
        phi = partial(point_outputs, weights, asked, asked.alignment)
        return self.replied(new, client, message, round_number, phi, info)

    def digest(self, weights: Tensor, target: Tensor, client: Client, rng: Stream) -> tuple[Tensor, float]:
        """The weights after distillation of the target, and the last loss."""
        return fit_point(
            client.network,
            weights,
            steps(
                client.taught(target),
                self.digest_steps,
                self.digest_batch,
                rng.child("digest").torch(),
                client.training.augment,
            ),
            learning_rate=self.digest_learning_rate,
            weight_decay=0.0,
        )

    def predict(self, state: FedMDState, client: Client, x: Tensor, rng: Stream) -> Answer:
        return point_outputs(state.weights, client, x)
