"""FedKD (C. Wu, F. Wu, Lyu, Huang, Xie 2022): mutual distillation that counts more the better both networks are.

Every client's own network (the paper's mentor) and a messenger that is averaged by records (the mentee) learn from its
records and from each other, by a weight that falls with their cross-entropies on the minibatch, so that neither learns
from guesses:

    L_own       = CE_own       + strength KL[p_messenger || p_own] / (CE_own + CE_messenger)
    L_messenger = CE_messenger + strength KL[p_own || p_messenger] / (CE_own + CE_messenger)

The weight is a constant to the gradient; strength = 1 is the paper's. It differs from FML (`fml`) only in these losses.
Scored are the client's own network (personal) and the averaged messenger (global).

Unlike the paper, hidden states and attention maps are not distilled, which needs networks of one kind, and updates are
not compressed by singular values: what a client sends has a size that was agreed on. Clients use Adam.
"""

from pydantic import Field
from torch import Tensor

from fedbnn.base.settings import settings
from fedbnn.methods.mutual import MutualLearning

_LEAST = 1e-6  # instead of a cross-entropy of zero


@settings
class FedKD(MutualLearning):
    """Networks of any architecture and an averaged messenger, which teach each other as far as they are right."""

    name = "fedkd"
    summary = "networks of any architecture, each in adaptive mutual distillation with an averaged messenger"

    strength: float = Field(default=1.0, ge=0, description="weight of the distillation, before it adapts to the losses")

    def losses(self, own: Tensor, own_kl: Tensor, sent: Tensor, sent_kl: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.strength / (own + sent).detach().clamp_min(_LEAST)
        return own + weight * own_kl, sent + weight * sent_kl
