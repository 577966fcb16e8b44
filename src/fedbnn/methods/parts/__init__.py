"""Parts beyond the paper, each off by default, that FedBNN and FedMD can be composed with alike.

- `focus`       turns the consensus towards the client's own classes
- `teacher`     lets a model on public features speak for the client
- `companion`   lets such a model predict beside the client's network
- `rehearsal`   keeps showing the consensus in local training
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.settings import settings
from fedbnn.federation.method import Client
from fedbnn.methods.parts.feature_model import companion_prediction, fit_companion, teacher_outputs
from fedbnn.methods.parts.focus import class_weights
from fedbnn.methods.parts.rehearsal import Rehearsal
from fedbnn.models.bayes import Prediction, mixture
from fedbnn.models.training import Records

Teacher = Literal["network", "features", "both"]


@dataclass(frozen=True)
class PartsState:
    """What the parts keep of a client, beside its network."""

    teacher_phi: Tensor | None = None  # points x classes: the feature model's outputs; the same in every round
    companion: Tensor | None = None  # (features + 1) x classes: its fitted weights and bias, in double precision


@settings
class Parts:
    """Settings of the parts, and where each comes into a client's turn."""

    focus: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="how far the consensus is turned towards the classes that the client itself holds: 0 keeps all "
        "that peers know, 1 takes what they know of the client's own classes only",
    )
    teacher: Teacher = Field(
        default="network",
        description="who speaks for a client: its network, a softmax model on public features fitted to its records, "
        "or both (the mean); the last two need a consensus of probabilities, and are not asked under privacy",
    )
    companion: bool = Field(
        default=False,
        description="predict by the mean of the network and of a softmax model on public features that learns from the "
        "same records and consensus; it is never sent",
    )
    rehearsal: float = Field(
        default=0.0,
        ge=0,
        description="weight of the consensus in local training itself, where each minibatch of own records is joined "
        "by one of alignment points; 0 leaves all to what the consensus has taught before",
    )

    def check_parts(self, client: Client, method: str) -> None:
        """Raise a UserError where public features cannot be worked out."""
        uses_features = self.companion or self.teacher != "network"
        if uses_features and client.privacy.features == "scattering" and client.alignment.dim() != 4:
            raise UserError(
                f"method '{method}' uses public features: privacy.features = 'scattering' needs images, the "
                f"records are {tuple(client.alignment.shape[1:])}; set privacy.features to auto"
            )

    def focused(self, target: Tensor, client: Client) -> Tensor:
        return target if self.focus == 0 else target * class_weights(client.train.y, client.classes, self.focus)

    def rehearsed(self, target: Tensor | None, client: Client) -> Rehearsal | None:
        """What joins the minibatches of local training."""
        if target is None or self.rehearsal == 0:
            return None
        return Rehearsal(Records(client.alignment, target), self.rehearsal)

    def remembered(self, state: PartsState, client: Client, target: Tensor | None) -> dict[str, Any]:
        """The fields of PartsState after a turn with this target on the alignment set."""
        phi = state.teacher_phi
        if phi is None and self.teacher != "network" and not client.privacy.on:
            phi = teacher_outputs(client)
        return {"teacher_phi": phi, "companion": fit_companion(client, target) if self.companion else None}

    def spoken(self, state: PartsState, own: Callable[[], Tensor]) -> Tensor:
        """What speaks for the client on the alignment set; `own` are its network's outputs."""
        if state.teacher_phi is None:
            return own()
        return state.teacher_phi if self.teacher == "features" else (own() + state.teacher_phi) / 2

    def accompanied(self, prediction: Prediction, state: PartsState, client: Client, x: Tensor) -> Prediction:
        """The network's prediction for x, together with the companion's."""
        if not self.companion:
            return prediction
        weights = fit_companion(client, None) if state.companion is None else state.companion
        return mixture(prediction, companion_prediction(client, weights, x))
