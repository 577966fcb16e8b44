"""output_perturbation: the personal model's outputs with noise on each of them, which is the paper's mechanism.

The outputs are put on the simplex first: of logits, one record can change any number by any amount. One record can
then move m outputs by sqrt(2 m) in all, and every round is a release of its own, so the noise is rarely of any use.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.features.public import digest_of
from fedbnn.federation.message import Message, Numbers, UploadSpec
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.consensus import Rule
from fedbnn.methods.mechanisms.mechanism import ConsensusState, OutputsMechanism
from fedbnn.privacy import ReleaseGate, onto_simplex, simplex_sensitivity
from fedbnn.privacy.mechanism import Release, Sizes
from fedbnn.privacy.sums import RELEASED, UNIT

_DROWNED = 0.5  # standard deviation of the noise on a joined probability, above which nothing is left to learn


def perturbed(gate: ReleaseGate, probs: Tensor, received: Tensor | None, round_number: int) -> Tensor:
    """Class distributions on the alignment set with noise on every number.

    Each round, and each consensus that was received before it, is a question of its own.
    """
    points = len(gate.alignment)
    released = gate.release(
        digest_of("outputs", gate.alignment, "" if received is None else received.cpu(), round_number),
        points * gate.classes,
        simplex_sensitivity(points) * (1 + 1e-6),  # what rounding and the grid could add
        lambda: (onto_simplex(probs.cpu()) / UNIT).trunc().to(torch.int64),
    )
    return (released.double() * UNIT).float().view(points, gate.classes)


class OutputPerturbation(OutputsMechanism):
    """Noise on every output of the personal model."""

    name = "output_perturbation"
    summary = "the personal model's outputs with noise on each of them (the paper's; rarely of any use)"
    sent = "Class probabilities on the alignment set of the personal model, with noise on every number."
    rule = "projected"

    def releases(self, rounds: int) -> int:
        return rounds + 1

    def release(self, sizes: Sizes) -> Release:
        """Its signal is that of outputs that are sure at all points, as seen from uniform ones."""
        return Release(
            sizes.alignment * sizes.classes,
            simplex_sensitivity(sizes.alignment),
            math.sqrt(sizes.alignment * (1 - 1 / sizes.classes)),
            "distance of a sure output from the uniform one",
            at_most=False,
            joined=True,
        )

    def upload(self, client: Client, message: Message, round_number: int, outputs: Callable[[], Tensor]) -> Message:
        return Message({"phi": perturbed(client.gate, outputs(), message.get("phi_bar"), round_number)})

    def expected_upload(self, roster: Roster, rule: Rule) -> UploadSpec:
        """Released numbers end at RELEASED; noise is what makes them leave the simplex."""
        most = RELEASED * UNIT
        return {"phi": Numbers((len(roster.alignment), roster.classes), -most, most)}

    def server_init(self, roster: Roster) -> ConsensusState:
        """Refuse to add noise in which nothing is left, unless it is wanted."""
        plan = roster.privacy.plan(roster.rounds, 1)
        each = plan.noise_multiplier * simplex_sensitivity(len(roster.alignment))
        joined = each / math.sqrt(roster.clients)
        if joined > _DROWNED and not roster.privacy.force:
            raise UserError(
                f"privacy.mechanism = '{self.name}': epsilon {roster.privacy.epsilon:g} for {plan.releases} "
                f"releases of {len(roster.alignment)} outputs needs noise of standard deviation {each:.3g} on each "
                f"probability, {joined:.3g} after averaging {roster.clients} clients: nothing could be learned. Use "
                "dp_teacher, or set privacy.force = true to see for yourself"
            )
        return super().server_init(roster)
