"""Clients' states that outlive their worker: every new one is a file at once, from which another worker goes on.

A worker may die after it has saved a client's new state and before the reply has arrived. So a new state is written
beside the one before, under the number of the request that it came of:

    client-0003.safetensors         settled: the reply has arrived
    client-0003.safetensors.17      of request 17, to be settled

The next request tells the worker that all replies to the one before have arrived. Whoever takes over from a dead
worker is told which of them have, and forgets the others: their turns are taken again, from the same states.
Files are not forced to disk: they are to outlive a process, and no machine.
"""

from collections.abc import Collection
from pathlib import Path

import torch

from fedbnn.federation.engines.states import ClientStates, state_file
from fedbnn.federation.method import State


class LastingStates(ClientStates):
    """States of which each is on file as soon as it is set.

    Attributes:
        request: the number of the request that states are set by from now on.

    """

    def __init__(
        self,
        kind: type[State],
        most: int,
        folder: Path,
        device: torch.device,
        request: int,
        answered: Collection[int] = (),
    ) -> None:
        """What is found in the folder is taken over, as it is if all requests before this one were answered, and this
        one by these clients.
        """
        super().__init__(kind, most, folder, device)
        self.request = request
        self._unsettled: dict[int, int] = {}  # by client, the request
        for file in sorted(self._folder.glob("client-*")):  # others are halves that a dead worker left
            client, number = _parts(file)
            if number is None:
                self._filed.add(client)
            elif number < request or client in answered:
                file.replace(state_file(self._folder, client))
                self._filed.add(client)
            else:
                file.unlink()

    def __setitem__(self, client: int, state: State) -> None:
        self._unsettled[client] = self.request
        self._write(client, state)
        self._hold(client, state)

    def settle(self) -> None:
        """All replies up to now have arrived."""
        for client, number in self._unsettled.items():
            settled = state_file(self._folder, client)
            _of(settled, number).replace(settled)
        self._unsettled = {}

    def _file_of(self, client: int) -> Path:
        settled = super()._file_of(client)
        return _of(settled, self._unsettled[client]) if client in self._unsettled else settled


def _of(settled: Path, request: int) -> Path:
    return settled.with_name(f"{settled.name}.{request}")


def _parts(file: Path) -> tuple[int, int | None]:
    """The client of a file, and the request that it came of; None: it is settled."""
    name, _, *request = file.name.split(".")
    return int(name.removeprefix("client-")), int(request[0]) if request else None
