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
from safetensors.torch import load_file
from torch import Tensor

from fedbnn.base.devices import CPU
from fedbnn.base.errors import UserError
from fedbnn.base.files import telling
from fedbnn.base.tensors import save_tensors
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
    except Exception as error:  # of the reader, or of torch for a shape that nothing can have
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
        self._filed: set[int] = set()  # whose file is as the state is

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
            tensors = read_state(self._file_of(client))
            self._hold(client, self._kind.from_tensors(tensors).to(self._device))
        self._held.move_to_end(client)
        return self._held[client]

    def __setitem__(self, client: int, state: State) -> None:
        self._filed.discard(client)
        self._hold(client, state)

    def _hold(self, client: int, state: State) -> None:
        """Have it in memory, and make room for it."""
        self._held[client] = state
        self._held.move_to_end(client)
        while len(self._held) > self._most:
            oldest, left = self._held.popitem(last=False)
            if oldest not in self._filed:
                self._write(oldest, left)

    def _write(self, client: int, state: State) -> None:
        save_tensors(state.to(CPU).tensors(), self._file_of(client))
        self._filed.add(client)

    def _file_of(self, client: int) -> Path:
        return state_file(self._folder, client)

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self._held.pop(client, None)
        self._filed.discard(client)

    def __contains__(self, client: object) -> bool:
        return client in self._held or client in self._filed

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._held, *self._filed}))

    def __len__(self) -> int:
        return len({*self._held, *self._filed})

    def take(self, client: int) -> None:
        """Have the state whose file somebody has put into the folder."""
        self._filed.add(client)

    def save(self, folder: Path) -> None:
        """Every state as a file in this folder."""
        for client in self:
            if client in self._held:
                save_tensors(self._held[client].to(CPU).tensors(), state_file(folder, client))
            else:
                with telling(folder):
                    shutil.copyfile(self._file_of(client), state_file(folder, client))
