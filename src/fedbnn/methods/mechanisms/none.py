"""No protection: what speaks for a client leaves as it is."""

from collections.abc import Callable

from torch import Tensor

from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods.mechanisms.mechanism import OutputsMechanism


class Unprotected(OutputsMechanism):
    """Outputs on the alignment set, without noise."""

    name = "none"
    summary = "outputs leave as they are; nothing is guaranteed"
    sent = "Outputs on the alignment set, without noise."

    def upload(self, client: Client, message: Message, round_number: int, outputs: Callable[[], Tensor]) -> Message:
        return Message({"phi": outputs()})
