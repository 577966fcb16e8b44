"""The way out of a client for sums and outputs: every release is charged to its ledger before its noise is drawn.

What is released depends on the client's own settings and records, and on nothing a server says about norms, noise or
sensitivity. A release is named after a hash of everything public that it depends on, so the same question gets the
bytes of its first answer, for nothing, and any other question is another release and is charged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.features.public import Public, digest_of, public
from fedbnn.privacy import head as heads
from fedbnn.privacy.account import Account
from fedbnn.privacy.accountant import Guarantee
from fedbnn.privacy.cost import Cost
from fedbnn.privacy.plan import Plan
from fedbnn.privacy.settings import PrivacySettings
from fedbnn.privacy.sums import gap_of, grid_sum, with_noise

_ROWS = 1024  # records whose contributions are held at once


@dataclass(frozen=True)
class ReleaseGate:
    """Attributes:

    x, y: the client's records, on the CPU as the alignment set; what leaves of them goes through `release`.
    rounds: exchanges that are planned.
    multiplicity: the largest number of clients that hold one and the same record.
    account: where releases are charged; its budget is the one of the settings, by which the noise is planned.
    clients: how many there are in all, among which secure aggregation divides the noise.

    """

    x: Tensor
    y: Tensor
    classes: int
    alignment: Tensor
    settings: PrivacySettings
    rounds: int
    multiplicity: int
    account: Account
    clients: int = 1

    @cached_property
    def plan(self) -> Plan:
        return self.settings.plan(self.rounds, self.multiplicity, self.clients)

    def guarantee(self) -> Guarantee:
        """What everything that was ever released and counts with these records cost, as the ledgers have it."""
        return self.account.guarantee(self.settings.mechanism)

    @cached_property
    def public(self) -> Public:
        return public(self.alignment, self.settings.features, self.settings.dimensions)

    @property
    def shape(self) -> heads.Shape:
        return heads.Shape(self.public.map.dimensions, self.classes)

    @cached_property
    def _features(self) -> Tensor:
        return self.public.features(self.x)

    def sums(self, head: Tensor, *occasion: str) -> Tensor:
        """The noisy sum over records at this head, as whole numbers in units of the grid.

        On another occasion it is another release.
        """
        shape, head = self.shape, head.cpu()
        if tuple(head.shape) != (shape.features, shape.classes):
            raise UserError(f"a head of shape {tuple(head.shape)} was sent: it must be {shape.features, shape.classes}")
        if not bool((head.abs() <= heads.LARGEST).all()):
            raise UserError(f"a head was sent with numbers that are not finite or above {heads.LARGEST:g}")

        def total() -> Tensor:
            summed = torch.zeros(shape.numbers, dtype=torch.int64)
            for phi, y in zip(self._features.split(_ROWS), self.y.split(_ROWS), strict=True):
                summed += grid_sum(heads.contributions(phi, y, head, shape))
            return summed

        question = digest_of("sums", self.public.digest, head, *occasion)
        return self.release(question, shape.numbers, shape.sensitivity, total)

    def release(self, question: str, numbers: int, sensitivity: float, total: Callable[[], Tensor]) -> Tensor:
        """The answer to a question, with noise; asked for the first time, it is worked out and charged."""
        noise, plan = self.settings.noise, self.plan
        sd = plan.noise_multiplier * sensitivity
        cost = Cost(plan.mu, gap=plan.multiplicity * gap_of(sd, numbers, noise))
        inputs = digest_of(question, sd, noise)
        joined = 0.0
        if self.settings.secure:
            joined = self.settings.shares(self.rounds, self.multiplicity, self.clients).mu_joined
        data = self.account.release(
            inputs, cost, lambda: with_noise(total(), sd, noise).numpy().tobytes(), joined=joined
        )
        return torch.frombuffer(bytearray(data), dtype=torch.int64)
