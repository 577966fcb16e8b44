"""The deterministic client that methods without Bayes share: one weight vector, trained by Adam."""

from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.method import State
from fedbnn.federation.parties import Client
from fedbnn.methods.rehearsal import local_batches
from fedbnn.models.regression import Answer
from fedbnn.models.training import Pull, fit_point


@dataclass(frozen=True)
class Point(State):
    """A client's weights."""

    weights: Tensor


def point_outputs(weights: Tensor, client: Client, x: Tensor) -> Answer:
    """What the client's network says of x at these weights."""
    return client.says(iter([weights]), x)


class PointModel:
    """One weight vector: how it begins and predicts."""

    client_state = Point

    def client_init(self, client: Client) -> Point:
        return Point(client.initial_weights())

    def predict(self, state: Point, client: Client, x: Tensor, rng: Stream) -> Answer:
        return point_outputs(state.weights, client, x)


@settings
class PointTraining:
    """Settings and steps of its training by Adam."""

    learning_rate: float = Field(default=5e-4, gt=0, description="Adam's learning rate in local training")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty on the weights in local training")

    def train(
        self,
        weights: Tensor,
        client: Client,
        passes: int,
        rng: Stream,
        pull: Pull | None = None,
        part: slice = slice(None),
    ) -> tuple[Tensor, float]:
        """`passes` epochs of the records' loss, plus the pull, on its own; only `part` of the weights moves."""
        return fit_point(
            client.network,
            weights,
            local_batches(client, passes, rng),
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            pull=pull,
            part=part,
        )
