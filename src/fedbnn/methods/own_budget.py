"""What methods share whose clients add noise of their own to what they send, within a budget of the method's settings.

What leaves such a client is a function of noisy numbers and of what is public, nothing else: one call of `charged`
makes the noisy numbers, after their cost is in the ledger of the client's records. The same question again has the
bytes of the first answer.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.settings import settings
from fedbnn.features.public import digest_of
from fedbnn.federation.method import Method, Promise, State
from fedbnn.federation.parties import Client
from fedbnn.privacy import Budget, Cost, Guarantee, PrivacySettings

RESERVE = 1e-4  # of epsilon: room for the gap of discrete noise, and for another grid of the accountant

S = TypeVar("S", bound=State)  # the client's state
V = TypeVar("V", bound=State)  # the server's


@settings
class OwnBudget(Method[S, V]):
    """A budget, whose cost at record level is in the ledger of each client's records."""

    needs_protection = False  # has its own, and its own budget

    epsilon: float = Field(
        default=3.0, gt=0, description="privacy budget of the whole run, from which the noise follows"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="probability that is exempt; far below 1 / records")
    noise: Literal["system", "seed"] = Field(
        default="system",
        description="where noise comes from: system (the operating system's randomness), or seed (repeatable, for "
        "experiments only: who knows the seed can take the noise away)",
    )

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """What ledgers and reports call its protection; in `report.protection`."""

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)

    @property
    def unit(self) -> Literal["record", "client"]:
        """What is hidden."""
        return "record"

    def protects(self, privacy: PrivacySettings) -> Promise | None:
        """Nothing with noise that a seed decides: whoever knows the seed takes it away."""
        return None if self.noise == "seed" else Promise(self.budget, self.unit)

    def privacy_spent(self, client: Client, turns: int) -> Guarantee | None:
        return None if self.noise == "seed" else client.account(self.budget).guarantee(self.mechanism)

    def check_deployed(self) -> None:
        if self.noise == "seed":
            raise UserError(
                f"methods.{self.name}.noise = 'seed' is for experiments on one machine: whoever knows the terms knows "
                "the seed, and can take the noise away; only 'system' is allowed here"
            )

    def check_client(self, client: Client) -> None:
        super().check_client(client)
        count = len(client.train)
        if self.unit == "record" and self.delta >= 1 / count:
            raise UserError(
                f"methods.{self.name}.delta = {self.delta}: client '{client.name}' has {count} records, and a delta of "
                f"1 / {count} or more protects none of them; choose a smaller one"
            )

    def charged(
        self,
        client: Client,
        given: tuple[Tensor, ...],
        asked: Mapping[str, Any],
        cost: Cost,
        make: Callable[[], Tensor],
        kind: torch.dtype,
    ) -> Tensor:
        """What `make` gives once its cost is in the ledger, or what it gave when the same was asked before.

        `given` and `asked` are all that it depends on beside the records and the method's settings.
        """
        about = {"model": asdict(client.model), **asked, **asdict(cast(Any, self))}
        question = digest_of(self.mechanism, *(one.cpu() for one in given), json.dumps(about, sort_keys=True))
        data = client.account(self.budget).release(question, cost, lambda: make().cpu().numpy().tobytes())
        return torch.frombuffer(bytearray(data), dtype=kind).to(client.device)
