"""Ditto (Li, Hu, Beirami, Smith 2021): a personal model beside the shared one, pulled towards it.

A round of client i, which has kept its personal model v_i and receives the server's w:

    w_i <- E local epochs on f_i from w
    v_i <- E local epochs on f_i(v) + lambda/2 ||v - w||^2 from v_i

It sends w_i alone; the server averages as FedAvg does, w <- sum_i (n_i / sum n) w_i. In the warm-up v_i starts at w.
With lambda = 0 clients train alone; the larger lambda, the nearer they stay to FedAvg. Scored are v_i (personal) and
w (global). A round costs twice FedAvg's. Unlike the paper, clients use Adam, as all methods here do.

Ditto is not part of fedbnn: it shows a method from outside, whole. From the folder that holds this file,

    fedbnn run --set method=ditto:Ditto --set 'models=[{name="cnn2"}]' --set methods.ditto.strength=0.5
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client, State, Update, Variant
from fedbnn.methods.averaging import Averaging
from fedbnn.models.bayes import Prediction, average
from fedbnn.models.training import Pull, epochs, fit_point


@dataclass(frozen=True)
class Personal(State):
    """The model that a client keeps to itself."""

    weights: Tensor


@settings
class Ditto(Averaging[Personal]):
    """A shared model, and personal ones near it."""

    name = "ditto"
    summary = "personal models pulled towards an averaged one, one architecture"
    client_state = Personal

    strength: float = Field(default=0.1, ge=0, description="lambda, how strongly personal models are pulled")
    learning_rate: float = Field(default=5e-4, gt=0, description="Adam's learning rate in local training")

    def client_init(self, client: Client) -> Personal:
        return Personal(client.initial_weights())

    def client_update(
        self, state: Personal, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Personal]:
        shared = message.arrays["weights"]
        own = shared if round_number == 0 else state.weights
        trained, loss = self.train(shared, client, round_number, rng.child("shared"))
        personal, _ = self.train(own, client, round_number, rng.child("personal"), Pull(shared, self.strength))
        info = {"loss": loss, "apart": float((personal - shared).norm())}
        return Update(Personal(personal), self.upload(trained, client), info)

    def train(
        self, start: Tensor, client: Client, round_number: int, rng: Stream, pull: Pull | None = None
    ) -> tuple[Tensor, float]:
        """The round's epochs of cross-entropy, plus the pull, on the client's own records."""
        budget = client.training
        passes = budget.passes(round_number)
        batches = epochs(client.train, passes, budget.batch_size, rng.torch(), budget.augment)
        rate = self.learning_rate
        return fit_point(client.network, start, batches, learning_rate=rate, weight_decay=0.0, pull=pull)

    def predict(self, state: Personal, client: Client, x: Tensor, rng: Stream) -> Prediction:
        return average(client.network, iter([state.weights]), x)

    def scored(self, state: Personal, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Personal]:
        return {"personal": state, "global": Personal(message.arrays["weights"])}
