"""The half that methods without any exchange share: a server that hears and says nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message, UploadSpec
from fedbnn.federation.method import Method, State
from fedbnn.federation.parties import Roster

S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Silent(State):
    """Nothing to remember."""


class Alone(Method[S, Silent]):
    """Every client for itself."""

    server_state = Silent
    needs_protection = False  # nothing is sent

    def server_init(self, roster: Roster) -> Silent:
        return Silent()

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        return {}

    def server_update(self, state: Silent, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Silent:
        return state

    def broadcast(self, state: Silent, client: int) -> Message:
        return Message()
