"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020): FedAvg with local training held near the server's model.

client i minimises  f_i(w_i) + mu/2 ||w_i - w||^2;    mu = 0 is FedAvg
"""

from pydantic import Field
from torch import Tensor

from fedbnn.base.settings import settings
from fedbnn.methods.fedavg import FedAvg
from fedbnn.models.training import Pull


@settings
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    name = "fedprox"
    summary = "FedAvg with local training held near the server's model"

    mu: float = Field(default=0.01, ge=0, description="strength of the pull towards the server's model")

    def pull(self, weights: Tensor) -> Pull | None:
        return Pull(weights, self.mu)
