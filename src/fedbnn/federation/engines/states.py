"""Clients' states: those used last in memory, the others in files.

A federation of thousands has more states than memory. Each worker keeps a bounded number; the state that was used
longest ago is written to a file of its own and read again when its client is asked, bit for bit the same.
"""

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedbnn.base.devices import CPU
from fedbnn.base.errors import UserError
from fedbnn.federation.method import State

IN_MEMORY = 64  # clients a worker holds at once, unless it is told otherwise


def state_file(folder: Path, client: int) -> Path:
    return folder / f"client-{client:04d}.safetensors"


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a state as they were saved."""
    # Loaded tensors may lie unaligned in a memory map; a copy gives the same addresses modulo 64, hence the same
    # kernels and the same bits, as a run that was never stopped.
    try:
        return {name: value.clone() for name, value in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


class ClientStates(MutableMapping[int, State]):
    """By client. At most `most` states are in memory, on the device; files in the folder hold the others.

    Without a folder there is one of its own, from when it is needed until this is gone.
    """

    def __init__(
        self, kind: type[State], most: int = IN_MEMORY, folder: Path | None = None, device: torch.device = CPU
    ) -> None:
        self._kind, self._most, self._given, self._device = kind, most, folder, device
        self._held: OrderedDict[int, State] = OrderedDict()  # the one used longest ago first
        self._filed: set[int] = set()

    @cached_property
    def _folder(self) -> Path:
        if self._given is not None:
            self._given.mkdir(parents=True, exist_ok=True)
            return self._given
        own = tempfile.mkdtemp(prefix="fedbnn-states-")
        weakref.finalize(self, shutil.rmtree, own, ignore_errors=True)
        return Path(own)

    def __getitem__(self, client: int) -> State:
        if client not in self._held:
            if client not in self._filed:
                raise KeyError(client)
            tensors = read_state(state_file(self._folder, client))
            self[client] = self._kind.from_tensors(tensors).to(self._device)
        self._held.move_to_end(client)
        return self._held[client]

    def __setitem__(self, client: int, state: State) -> None:
        self._held[client] = state
        self._held.move_to_end(client)
        self._filed.discard(client)
        while len(self._held) > self._most:
            oldest, left = self._held.popitem(last=False)
            save_file(left.to(CPU).tensors(), state_file(self._folder, oldest))
            self._filed.add(oldest)

    def __delitem__(self, client: int) -> None:
        if self._held.pop(client, None) is None:
            self._filed.remove(client)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._held, *self._filed}))

    def __len__(self) -> int:
        return len(self._held) + len(self._filed)

    def leave(self, client: int) -> None:
        """Put a state into its file in the folder, for whoever shares that and takes it."""
        if client in self._held:
            save_file(self._held.pop(client).to(CPU).tensors(), state_file(self._folder, client))
        else:
            self._filed.remove(client)

    def take(self, client: int) -> None:
        """Have the state that another one left in the folder."""
        self._filed.add(client)

    def save(self, folder: Path) -> None:
        """Every state as a file in this folder."""
        for client in self:
            if client in self._held:
                save_file(self._held[client].to(CPU).tensors(), state_file(folder, client))
            else:
                shutil.copyfile(state_file(self._folder, client), state_file(folder, client))
