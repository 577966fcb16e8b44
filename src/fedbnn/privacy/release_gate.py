"""The one way out of a client under privacy: every release is charged to its ledger before its noise is drawn.

What is released depends on the client's own settings and records, and on nothing a server says about norms, noise or
sensitivity. A release is named after a hash of everything public that it depends on, so the same question gets the
bytes of its first answer, for nothing, and any other question is another release and is charged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.features.public import Public, digest_of, public
from fedbnn.privacy import head as heads
from fedbnn.privacy.accountant import Guarantee
from fedbnn.privacy.ledger import Ledger
from fedbnn.privacy.plan import Plan
from fedbnn.privacy.settings import PrivacySettings
from fedbnn.privacy.spending import Budget
from fedbnn.privacy.sums import charged, check_discrete, grid_sum, with_noise

_ROWS = 1024  # records whose contributions are held at once


@dataclass(frozen=True)
class ReleaseGate:
    """Attributes:

    x, y: the client's records, on the CPU as the alignment set; what leaves of them goes through `release`.
    rounds: exchanges that are planned.
    multiplicity: the largest number of clients that hold one and the same record.
    folder: of the client's ledgers, one for each set of records.
    owner: the client's name, written into the ledger.
    known_as: fingerprint of the records as they were before scaling; without it that of `x` and `y`.
    cap: on everything that is ever released from the records, where it is another than the budget of the settings,
        by which the noise is planned.

    """

    x: Tensor
    y: Tensor
    classes: int
    alignment: Tensor
    settings: PrivacySettings
    rounds: int
    multiplicity: int
    folder: Path
    owner: str
    known_as: str = ""
    cap: Budget | None = None

    @cached_property
    def plan(self) -> Plan:
        return self.settings.plan(self.rounds, self.multiplicity)

    @cached_property
    def fingerprint(self) -> str:
        return self.known_as or digest_of(self.x, self.y)

    @property
    def ledger(self) -> Path:
        """The folder of the ledger of these records."""
        return self.folder / self.fingerprint[:16]

    def guarantee(self) -> Guarantee:
        """What everything that was ever released from these records costs, as the ledger has it."""
        spent = Ledger.read(self.ledger).spent(self.settings.delta) if self.ledger.exists() else 0.0
        return Guarantee(spent, self.settings.delta, "record", self.settings.mechanism)

    @cached_property
    def public(self) -> Public:
        return public(self.alignment, self.settings.features, self.settings.dimensions)

    @property
    def shape(self) -> heads.Shape:
        return heads.Shape(self.public.map.dimensions, self.classes)

    @cached_property
    def _features(self) -> Tensor:
        return self.public.features(self.x)

    def sums(self, head: Tensor) -> Tensor:
        """The noisy sum over records at this head, as whole numbers in units of the grid."""
        shape, head = self.shape, head.cpu()
        if tuple(head.shape) != (shape.features, shape.classes):
            raise UserError(f"a head of shape {tuple(head.shape)} was sent: it must be {shape.features, shape.classes}")

        def total() -> Tensor:
            summed = torch.zeros(shape.numbers, dtype=torch.int64)
            for phi, y in zip(self._features.split(_ROWS), self.y.split(_ROWS), strict=True):
                summed += grid_sum(heads.contributions(phi, y, head, shape))
            return summed

        return self.release(digest_of("sums", self.public.digest, head), shape.numbers, shape.sensitivity, total)

    def release(self, question: str, numbers: int, sensitivity: float, total: Callable[[], Tensor]) -> Tensor:
        """The answer to a question, with noise; asked for the first time, it is worked out and charged."""
        noise, plan = self.settings.noise, self.plan
        sd = plan.noise_multiplier * sensitivity
        if noise == "discrete":
            together = numbers * plan.releases * plan.multiplicity
            problem = check_discrete(sd, together, self.settings.epsilon, self.settings.delta)
            if problem:
                raise UserError(f"privacy.noise = 'discrete': {problem}; use continuous noise")
        inputs = digest_of(question, sd, noise)
        with Ledger.open(self.ledger, self.fingerprint, self.owner) as ledger:
            data = ledger.release(
                f"release-{inputs[:32]}",
                inputs,
                charged(plan.mu, noise),
                self.cap or self.settings.budget,
                lambda: with_noise(total(), sd, noise).numpy().tobytes(),
            )
        return torch.frombuffer(bytearray(data), dtype=torch.int64)
