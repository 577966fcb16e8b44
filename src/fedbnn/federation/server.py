"""The server's half of a federation: who is asked, what they are sent, what is let in, and what is made of it.

It knows nothing of how messages travel: the round loop on an engine and the strategy on Flower both drive this.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.base.tensors import save_tensors
from fedbnn.federation.message import BadMessage, Message, UploadSpec, check
from fedbnn.federation.method import Method, State
from fedbnn.federation.parties import Roster

SERVER_FILE = "server.safetensors"
PATIENCE = 3  # replies in a row that are not let in, after which a client is set aside
MOST_FAILURES = 3  # times in a row that too few answer an exchange, after which a run ends


class Server:
    """The server's state and the number of the last round that is finished; 0 is the warm-up, -1 before it.

    Attributes:
        refused: how many replies in a row of a client were not let in; who has sent `patience` of them is set aside:
            it is not asked again, and nothing that it ever sent is used any more.
        failures: how many times in a row the next exchange had fewer good replies than it needs.

    """

    def __init__(
        self,
        method: Method[Any, Any],
        roster: Roster,
        *,
        seed: int = 0,
        participation: float = 1.0,
        patience: int = PATIENCE,
        quorum: int = 0,
    ) -> None:
        self.method = method
        self.roster = roster
        self.seed = seed
        self.participation = participation
        self.patience = patience
        self.quorum = quorum
        self.failures = 0
        self.refused: dict[int, int] = {}
        self.round_number = -1
        self.state: State = method.server_init(roster)
        asked, least = self._count(), method.least_replies(self.state)
        if asked < least:
            raise UserError(
                f"participation = {participation:g}: {asked} of {roster.clients} clients take part in a round, and "
                f"{least} are needed"
            )

    @property
    def asked(self) -> list[int]:
        """Who is asked next: the participants of the next round, or those that the round goes on with."""
        again = [client for client in sorted(self.method.still_asked(self.state)) if client not in self.aside]
        return again or self.participants(self.round_number + 1)

    @property
    def aside(self) -> list[int]:
        """Who is set aside for the rest of the run."""
        return sorted(client for client, times in self.refused.items() if times >= self.patience)

    @property
    def needed(self) -> int:
        """Good replies without which the next exchange is held again: the quorum or as many as are asked, and no fewer
        than the method needs.
        """
        return max(min(self.quorum, len(self.asked)), self.method.least_replies(self.state))

    def fell_short(self, needed: int, why: str = "") -> None:
        """The next exchange had fewer good replies than needed, and is held again; not for ever."""
        self.failures += 1
        if self.failures >= MOST_FAILURES:
            raise UserError(
                f"round {self.round_number + 1}: fewer than {needed} good replies {self.failures} times in a row{why}"
            )

    def participants(self, round_number: int) -> list[int]:
        """Everybody in the warm-up; later a random share, at least one. Nobody who is set aside."""
        everybody = [client for client in range(self.roster.clients) if client not in self.aside]
        if not everybody:
            raise UserError(f"round {round_number}: every client has been set aside, as its replies were refused")
        if round_number == 0 or self.participation >= 1:
            return everybody
        rng = Stream((self.seed, "participation", round_number)).numpy()
        drawn = rng.choice(everybody, min(self._count(), len(everybody)), replace=False)
        return sorted(int(client) for client in drawn)

    def _count(self) -> int:
        return max(1, math.ceil(self.participation * self.roster.clients))

    def messages(self, clients: Sequence[int], state: State | None = None) -> dict[int, Message]:
        """What each receives next, were this the state; equal messages as one object, so that they can be sent once."""
        messages: dict[int, Message] = {}
        for client in clients:
            message = self.method.broadcast(self.state if state is None else state, client)
            messages[client] = next((m for m in messages.values() if _identical(m, message)), message)
        return messages

    def expected(self, client: int) -> UploadSpec:
        """What this client must reply."""
        return self.method.expected_reply(self.roster, client, self.method.broadcast(self.state, client))

    def refusal(self, client: int, message: Message) -> str:
        """Why this client's reply is not let in; empty when it is."""
        try:
            check(message, self.expected(client))
        except BadMessage as error:
            return str(error)
        return ""

    def judge(self, accepted: Iterable[int], refused: Iterable[int]) -> list[int]:
        """Count these replies, those let in and those not; the clients that are set aside from now on."""
        before = self.aside
        for client in accepted:
            self.refused.pop(client, None)
        for client in refused:
            self.refused[client] = self.refused.get(client, 0) + 1
        new = [client for client in self.aside if client not in before]
        for client in new:
            self.state = self.method.without(self.state, client)
        return new

    def take_in(self, accepted: Mapping[int, Message]) -> None:
        """Go on with these replies; the order in which they came has no part in it."""
        self.finish(self.after(accepted))

    def after(self, accepted: Mapping[int, Message]) -> State:
        """The state that the next exchange would leave with these replies."""
        rng = Stream((self.seed, "server", self.round_number + 1))
        with repeatable(rng):
            state: State = self.method.server_update(self.state, dict(sorted(accepted.items())), self.roster, rng)
        return state

    def finish(self, state: State) -> None:
        """The next exchange is over, and left this state; so is the round, if nobody is to be asked again."""
        self.state, self.failures = state, 0
        self.round_number += not self.method.still_asked(state)

    def save(self, folder: Path) -> None:
        metadata = {"refused": json.dumps(self.refused)} if self.refused else None
        save_tensors(self.state.tensors(), folder / SERVER_FILE, metadata)

    def load(self, folder: Path, round_number: int) -> None:
        """Go on from what `save` wrote after this round."""
        try:
            with safe_open(folder / SERVER_FILE, framework="pt") as file:
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  no mapping
                refused = json.loads((file.metadata() or {}).get("refused", "{}"))
            self.refused = {int(client): int(times) for client, times in refused.items()}
        except Exception as error:  # of the reader, of torch for a shape that nothing can have, or of JSON
            raise UserError(f"{folder / SERVER_FILE} cannot be read: {error}") from None
        self.state = type(self.state).from_tensors(tensors)
        self.round_number = round_number


def _identical(one: Message, other: Message) -> bool:
    """Whether both hold the very same pieces of memory under the same names."""
    return _pieces(one) == _pieces(other)


def _pieces(message: Message) -> dict[str, tuple[int, torch.Size, torch.dtype]]:
    return {name: (array.data_ptr(), array.shape, array.dtype) for name, array in message.arrays.items()}
