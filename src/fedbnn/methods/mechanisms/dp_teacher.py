"""dp_teacher: each client trains a small model with noise, and sends the outputs of that.

The client's head W on public features is trained from noisy sums over its records (`privacy.head`), through its
`ReleaseGate`, which charges the ledger. The outputs of W on the alignment set are post-processing: any number of points
and rounds costs nothing more. The personal network stays at home.
"""

from collections.abc import Callable

from torch import Tensor

from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods.mechanisms.mechanism import OutputsMechanism
from fedbnn.privacy import ReleaseGate
from fedbnn.privacy.head import TEACHER, Shape, improved
from fedbnn.privacy.mechanism import Release, Sizes
from fedbnn.privacy.sums import UNIT


def private_head(gate: ReleaseGate) -> Tensor:
    """W from the client's own noisy sums alone."""
    shape, plan = gate.shape, gate.plan
    sd = plan.noise_multiplier * shape.sensitivity
    head = shape.empty()
    for _ in range(plan.releases):
        total = gate.sums(head).double() * UNIT
        head = improved(head, total, sd, gate.public.moments, shape, TEACHER)
    return head


def release_of_sums(sizes: Sizes, *, joined: bool) -> Release:
    """A sum over records at a head; its signal if the contributions of all records pointed the same way."""
    shape = Shape(sizes.dimensions, sizes.classes)
    return Release(
        shape.numbers,
        shape.sensitivity,
        sizes.records * shape.clip,
        "length of the sum, if all records pointed the same way",
        at_most=True,
        joined=joined,
    )


class DPTeacher(OutputsMechanism):
    """A small model that was trained with noise speaks for the client."""

    name = "dp_teacher"
    summary = "outputs of a small model that was trained with noise on public features"
    sent = (
        "Class probabilities on the alignment set of a small model, which the client trained from sums over its "
        "records that have noise on every number."
    )
    rule = "by_class"
    asks_outputs = False

    def release(self, sizes: Sizes) -> Release:
        return release_of_sums(sizes, joined=False)

    def upload(self, client: Client, message: Message, round_number: int, outputs: Callable[[], Tensor]) -> Message:
        gate = client.gate
        return Message({"phi": gate.public.outputs(private_head(gate))})
