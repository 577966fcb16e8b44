"""The half that FedBNN and FedMD share: exchange of outputs on the alignment set, and the server that joins them.

What leaves a client, by `privacy.mechanism`:

- none                  the outputs on the alignment set of the personal model, of a model on public features
                        (`fedbnn.methods.teacher`), or the mean of both
- dp_teacher            the outputs of a small model that was trained with noise; the personal model stays at home
- dp_moments            noisy sums over records at the common small model, which the server improves with them
- output_perturbation   the personal model's outputs with noise on each of them

All three go through the client's `ReleaseGate`, which charges its ledger. What the server makes of them, and how often
clients use it, costs nothing more.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.features.public import Public, public
from fedbnn.federation.message import Integers, Message, UploadSpec
from fedbnn.federation.method import Client, Method, Roster, State
from fedbnn.methods.consensus import Rule, Weights, class_weights, join, output_of, target_of
from fedbnn.methods.teacher import taught
from fedbnn.models.bayes import Prediction
from fedbnn.privacy import Guarantee, PrivacySettings, simplex_sensitivity
from fedbnn.privacy.head import MOMENTS, Shape, improved
from fedbnn.privacy.sums import LARGEST, UNIT

S = TypeVar("S", bound=State)

_PRIVATE_RULES: dict[str, Rule] = {
    "dp_teacher": "by_class",
    "dp_moments": "mean_probabilities",
    "output_perturbation": "projected",
}
Teacher = Literal["network", "features", "both"]
_DROWNED = 0.5  # standard deviation of the noise on a joined probability, above which nothing is left to learn


@dataclass(frozen=True)
class Uploads(State):
    """The server's memory: every client's latest output on the alignment set, its weight, and the consensus.

    Under dp_moments there is one head for all instead, with the number of steps it has left.
    """

    phi: Tensor  # clients x points x classes; zeros for a client not heard from yet; empty under dp_moments
    weight: Tensor  # clients; zero for a client not heard from yet
    phi_bar: Tensor | None = None  # points x classes
    head: Tensor | None = None  # features x classes
    left: Tensor | None = None


@settings
class Exchange(Method[S, Uploads]):
    """Clients send outputs on the alignment set; the server joins the latest of every client and sends that back."""

    server_state = Uploads
    needs_protection = False  # knows every mechanism

    gamma: float = Field(default=0.7, ge=0, le=1, description="trust in the consensus against the client's own output")
    consensus: Rule = Field(
        default="mean_logits",
        description="how outputs are joined: mean_logits, mean_probabilities, sharpened (a power of the mean "
        "probabilities), corrected (these divided by their average over the alignment set first; for balanced sets), "
        "by_class (clients weighted by how often they name a class, and sharpened) or projected (mean, put on the "
        "simplex); each privacy.mechanism but none has its own",
    )
    sharpen: float = Field(default=3.0, gt=0, description="power of the sharpened, corrected and by_class consensus")
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
    weights: Weights = Field(
        default="uniform",
        description="a client's weight in the consensus: uniform, data (its records) or compute (its model's size)",
    )

    @property
    def uses_features(self) -> bool:
        """Whether a client fits a model on public features."""
        return self.teacher != "network"

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        if self.teacher != "network" and self.consensus == "mean_logits":
            raise UserError(
                f"methods.{self.name}.teacher = '{self.teacher}' gives probabilities, not logits: choose another "
                f"methods.{self.name}.consensus than mean_logits, e.g. sharpened"
            )
        if self.uses_features and client.privacy.features == "scattering" and client.alignment.dim() != 4:
            raise UserError(
                f"method '{self.name}' uses public features: privacy.features = 'scattering' needs images, the "
                f"records are {tuple(client.alignment.shape[1:])}; set privacy.features to auto"
            )
        if not client.privacy.on:
            return
        if self.weights != "uniform":
            raise UserError(
                f"methods.{self.name}.weights = '{self.weights}': under privacy.mechanism = "
                f"'{client.privacy.mechanism}' all clients weigh the same (uniform), as records may not be counted"
            )
        client.privacy.check_records(client.name, len(client.train))
        client.privacy.plan(client.rounds, client.multiplicity)

    def privacy_spent(self, client: Client, turns: int) -> Guarantee | None:
        return client.gate.guarantee() if client.privacy.on else None

    def reply(
        self,
        client: Client,
        message: Message,
        round_number: int,
        prediction: Callable[[], Prediction],
        taught: Tensor | None = None,
    ) -> Message:
        """What leaves the client; `prediction` gives the personal model's outputs on the alignment set."""
        match client.privacy.mechanism:
            case "dp_teacher":
                gate = client.gate
                return Message({"phi": gate.public.outputs(gate.teacher())})
            case "dp_moments":
                gate, head = client.gate, message.get("head")
                if head is None:  # the server has all it wants
                    return Message({"sums": torch.zeros(gate.shape.numbers, dtype=torch.int64)})
                return Message({"sums": gate.sums(head)})
            case "output_perturbation":
                return Message({"phi": client.gate.outputs(prediction().probs, message.get("phi_bar"), round_number)})
        phi = taught
        if phi is None or self.teacher == "both":
            own = output_of(prediction(), self.consensus)
            phi = own if taught is None else (own + taught) / 2
        arrays = {"phi": phi}
        if self.weights != "uniform":
            size = len(client.train) if self.weights == "data" else client.network.size
            arrays["weight"] = torch.tensor([float(size)])
        return Message(arrays)

    def rule(self, privacy: PrivacySettings) -> Rule:
        """How outputs are joined, which the mechanism decides if there is one."""
        return _PRIVATE_RULES.get(privacy.mechanism, self.consensus)

    def target(self, phi_bar: Tensor, client: Client, prediction: Callable[[], Prediction]) -> Tensor:
        """The corrected target on the alignment set, as class probabilities; `prediction` is the client's own."""
        rule = self.rule(client.privacy)
        own = output_of(prediction(), rule) if self.gamma < 1 else torch.zeros_like(phi_bar)  # not worth the time
        mixed = target_of(phi_bar, own, self.gamma, rule)
        return mixed if self.focus == 0 else mixed * class_weights(client.train.y, client.classes, self.focus)

    def taught(self, client: Client) -> Tensor | None:
        """What the model on public features says of the alignment set, if it is asked; the same in every round."""
        return None if self.teacher == "network" or client.privacy.on else taught(client)

    def server_init(self, roster: Roster) -> Uploads:
        points, clients = len(roster.alignment), roster.clients
        if points == 0:
            raise UserError(
                f"method '{self.name}' exchanges outputs on the alignment set: data.alignment must be at least 1"
            )
        if roster.privacy.mechanism == "output_perturbation":
            _check_noise(roster)
        if roster.privacy.mechanism == "dp_moments":
            _, shape = _head_of(roster)
            left = torch.tensor([roster.privacy.planned(roster.rounds)])
            return Uploads(torch.zeros(0), torch.zeros(clients), None, shape.empty(), left)
        return Uploads(torch.zeros(clients, points, roster.classes), torch.zeros(clients))

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        if roster.privacy.mechanism == "dp_moments":
            _, shape = _head_of(roster)
            return {"sums": Integers((shape.numbers,), LARGEST)}
        shapes: dict[str, tuple[int, ...]] = {"phi": (len(roster.alignment), roster.classes)}
        return shapes if self.weights == "uniform" else {**shapes, "weight": (1,)}

    def server_update(self, state: Uploads, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Uploads:
        if state.head is not None and state.left is not None:
            return _improve(state, state.head, state.left, replies, roster)
        phi, weight = state.phi.clone(), state.weight.clone()
        for client, reply in replies.items():
            phi[client] = reply.arrays["phi"]
            sent = reply.get("weight")
            weight[client] = 1.0 if sent is None else sent[0]
        heard = weight > 0
        if not bool(heard.any()):
            return state
        phi_bar = join(phi[heard], weight[heard], self.rule(roster.privacy), self.sharpen)
        return replace(state, phi=phi, weight=weight, phi_bar=phi_bar)

    def broadcast(self, state: Uploads, client: int) -> Message:
        arrays = {} if state.phi_bar is None else {"phi_bar": state.phi_bar}
        if state.head is not None and state.left is not None and int(state.left) > 0:
            arrays["head"] = state.head
        return Message(arrays)


def _head_of(roster: Roster) -> tuple[Public, Shape]:
    found = public(roster.alignment, roster.privacy.features, roster.privacy.dimensions)
    return found, Shape(found.map.dimensions, roster.classes)


def _improve(state: Uploads, head: Tensor, left: Tensor, replies: Mapping[int, Message], roster: Roster) -> Uploads:
    """dp_moments: a step of the common head with the sum of what clients sent."""
    if int(left) == 0 or not replies:
        return state
    found, shape = _head_of(roster)
    total = torch.stack([reply.arrays["sums"] for reply in replies.values()]).sum(0)
    plan = roster.privacy.plan(roster.rounds, 1)
    sd = plan.noise_multiplier * shape.sensitivity * math.sqrt(len(replies))
    head = improved(head, total * UNIT, sd, found.moments, shape, MOMENTS)
    return replace(state, head=head, left=left - 1, phi_bar=found.outputs(head))


def _check_noise(roster: Roster) -> None:
    """Refuse to add noise in which nothing is left, unless it is wanted."""
    plan = roster.privacy.plan(roster.rounds, 1)
    each = plan.noise_multiplier * simplex_sensitivity(len(roster.alignment))
    joined = each / math.sqrt(roster.clients)
    if joined > _DROWNED and not roster.privacy.force:
        raise UserError(
            f"privacy.mechanism = 'output_perturbation': epsilon {roster.privacy.epsilon:g} for {plan.releases} "
            f"releases of {len(roster.alignment)} outputs needs noise of standard deviation {each:.3g} on each "
            f"probability, {joined:.3g} after averaging {roster.clients} clients: nothing could be learned. Use "
            "dp_teacher, or set privacy.force = true to see for yourself"
        )
