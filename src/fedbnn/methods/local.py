"""Local: every client trains its own plain network on its own records. The floor for any federation."""

from fedbnn import settings
from fedbnn.message import Message
from fedbnn.method import Client, Update
from fedbnn.methods.alone import Alone
from fedbnn.methods.point import Point, PointTraining
from fedbnn.randomness import Stream


@settings.dataclass(frozen=True, config=settings.STRICT)
class Local(PointTraining, Alone[Point]):
    """Adam on the client's own cross-entropy; nothing is exchanged."""

    name = "local"
    summary = "every client trains a plain network alone"

    learning_rate: float = settings.with_default(PointTraining, "learning_rate", 3e-4)

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        weights, loss = self.train(state.weights, client, client.training.passes(round_number), rng)
        return Update(Point(weights), Message(), {"loss": loss})
