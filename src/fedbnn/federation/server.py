"""The server's half of a federation: who is asked, what they are sent, what is let in, and what is made of it.

It knows nothing of how messages travel: the round loop on an engine and the strategy on Flower both drive this.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.message import BadMessage, Message, check
from fedbnn.federation.method import Method, Roster, State

SERVER_FILE = "server.safetensors"


class Server:
    """The server's state and the number of the last round that is finished; 0 is the warm-up, -1 before it."""

    def __init__(self, method: Method[Any, Any], roster: Roster, *, seed: int = 0, participation: float = 1.0) -> None:
        self.method = method
        self.roster = roster
        self.seed = seed
        self.participation = participation
        self.round_number = -1
        self.state: State = method.server_init(roster)

    def participants(self, round_number: int) -> list[int]:
        """Everybody in the warm-up; later a random share, at least one."""
        everybody = list(range(self.roster.clients))
        if round_number == 0 or self.participation >= 1:
            return everybody
        count = max(1, math.ceil(self.participation * len(everybody)))
        rng = Stream((self.seed, "participation", round_number)).numpy()
        return sorted(int(client) for client in rng.choice(everybody, count, replace=False))

    def messages(self, clients: Sequence[int]) -> dict[int, Message]:
        """What each receives next; equal messages as one object, so that an engine can send them once."""
        messages: dict[int, Message] = {}
        for client in clients:
            message = self.method.broadcast(self.state, client)
            messages[client] = next((m for m in messages.values() if _identical(m, message)), message)
        return messages

    def refusal(self, client: int, message: Message) -> str:
        """Why this client's reply is not let in; empty when it is."""
        try:
            check(message, self.method.expected_upload(self.roster, client))
        except BadMessage as error:
            return str(error)
        return ""

    def take_in(self, accepted: Mapping[int, Message]) -> None:
        """Finish the next round with these replies; the order in which they came has no part in it."""
        number = self.round_number + 1
        rng = Stream((self.seed, "server", number))
        with repeatable(rng):
            self.state = self.method.server_update(self.state, dict(sorted(accepted.items())), self.roster, rng)
        self.round_number = number

    def save(self, folder: Path) -> None:
        save_file(self.state.tensors(), folder / SERVER_FILE)

    def load(self, folder: Path, round_number: int) -> None:
        """Go on from what `save` wrote after this round."""
        tensors = load_file(folder / SERVER_FILE)
        self.state = type(self.state).from_tensors({name: value.clone() for name, value in tensors.items()})
        self.round_number = round_number


def _identical(one: Message, other: Message) -> bool:
    """Whether both hold the very same pieces of memory under the same names."""
    return _pieces(one) == _pieces(other)


def _pieces(message: Message) -> dict[str, tuple[int, torch.Size, torch.dtype]]:
    return {name: (array.data_ptr(), array.shape, array.dtype) for name, array in message.arrays.items()}
