"""All clients in this process, one after the other: for debugging, notebooks and models defined on the spot."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbnn.base.devices import find_device
from fedbnn.federation.engines.engine import Reply, Site, by_index
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.engines.states import IN_MEMORY, ClientStates
from fedbnn.federation.evaluation import Scored
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.models.label_prior import Known
from fedbnn.models.regression import Answer


class InProcess:
    """An Engine without any other process."""

    def __init__(self, device: str = "cpu", in_memory: int = IN_MEMORY) -> None:
        self._device = find_device(device)
        self._in_memory = in_memory

    def start(self, method: Method[Any, Any], sites: Sequence[Site], seed: int) -> None:
        states = ClientStates(method.client_state, self._in_memory, device=self._device)
        self._host = ClientHost(method, by_index(sites), seed, self._device, states)

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        for client, message in messages.items():
            yield client, self._host.update(client, round_number, message)

    def lose(self, round_number: int, messages: Mapping[int, Message]) -> None:
        for client, message in messages.items():
            self._host.update(client, round_number, message, keep=False)

    def evaluate(
        self, round_number: int, messages: Mapping[int, Message], foreign: bool = False
    ) -> Iterator[tuple[int, dict[str, Scored]]]:
        for client, message in messages.items():
            yield client, self._host.evaluate(client, round_number, message, foreign)

    def predict(
        self,
        client: int,
        x: Tensor,
        round_number: int,
        message: Message,
        variant: str | None = None,
        prior: Known | Sequence[float] | None = None,
    ) -> Answer:
        return self._host.predict(client, x, round_number, message, variant, prior)

    def save(self, folder: Path) -> None:
        self._host.save(folder)

    def load(self, folder: Path) -> None:
        self._host.load(folder)

    def close(self) -> None:
        """Nothing to let go of."""
