"""FML, federated mutual learning (Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu 2020).

Every client trains its own network, of any architecture, and a messenger that all have in common (the paper's meme
model), each towards its records and towards the other's answers:

    L_own       = alpha CE_own      + (1 - alpha) KL[p_messenger || p_own]
    L_messenger = beta CE_messenger + (1 - beta)  KL[p_own || p_messenger]

The server averages the messengers by records, as FedAvg does. With alpha = 1 the own network is trained alone, with
beta = 1 the messenger is FedAvg's. Scored are the client's own network (personal) and the averaged messenger (global).
Unlike the paper, clients use Adam, begun anew in each round.
"""

from pydantic import Field
from torch import Tensor

from fedbnn.base.settings import settings
from fedbnn.methods.mutual import MutualLearning


@settings
class FML(MutualLearning):
    """Networks of any architecture and an averaged messenger that teach each other."""

    name = "fml"
    summary = "networks of any architecture, each in mutual distillation with an averaged messenger"

    alpha: float = Field(
        default=0.5, ge=0, le=1, description="weight of the records in the own network's loss; the rest: the messenger"
    )
    beta: float = Field(
        default=0.5, ge=0, le=1, description="weight of the records in the messenger's loss; the rest: the own network"
    )

    def losses(self, own: Tensor, own_kl: Tensor, sent: Tensor, sent_kl: Tensor) -> tuple[Tensor, Tensor]:
        return self.alpha * own + (1 - self.alpha) * own_kl, self.beta * sent + (1 - self.beta) * sent_kl
