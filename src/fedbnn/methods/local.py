"""Local: every client trains its own plain network on its own records. The floor for any federation."""

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings, with_default
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update
from fedbnn.federation.parties import Client
from fedbnn.methods.alone import Alone
from fedbnn.methods.point import Point, PointModel, PointTraining


@settings
class Local(PointModel, PointTraining, Alone[Point]):
    """Adam on the client's own cross-entropy; nothing is exchanged."""

    name = "local"
    summary = "every client trains a plain network alone"
    regression = True

    learning_rate: float = with_default(PointTraining, "learning_rate", 3e-4)

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        weights, loss = self.train(state.weights, client, client.training.passes(round_number), rng)
        return Update(Point(weights), Message(), {"loss": loss})
