"""The fault model on Flower's simulation: the same clients fail in the same way as on the local engine.

What is lost on the way is lost at the server's end of the wire. A site that crashes has to do so itself: its question
carries a mark, which only simulated sites look at. It takes its turn, ledgers included, and dies before it saves it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.app import Message as FlowerMessage

from fedbnn.deployment.flower.strategy import FederationStrategy
from fedbnn.deployment.flower.wire import packed, unpacked
from fedbnn.deployment.node import LARGEST, Node
from fedbnn.federation.faults import UNHEARD, Fault, FaultSettings, cut_short
from fedbnn.federation.message import Message

_DIES = "dies"  # the mark: a record beside those that every site reads


class FaultyStrategy(FederationStrategy):
    """A strategy whose sites fail as these faults say."""

    def __init__(self, *arguments: Any, faults: FaultSettings, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._faults = faults
        self._asks = (-1, 0)  # a round, and how often its sites were asked
        self._drawn: Mapping[int, Fault] = {}

    def _ask(self, kind: str, number: int, messages: Mapping[int, Message], **more: Any) -> list[FlowerMessage]:
        asked = super()._ask(kind, number, messages, **more)
        self._drawn = {}
        if kind != MessageType.TRAIN:
            return asked
        before = self._asks[1] if self._asks[0] == number else 0
        self._asks = number, before + 1
        self._drawn = self._faults.drawn(self.server.seed, number, before, messages)
        for client, fault in self._drawn.items():
            if fault == "crash":
                marked = {**self._asked[client].content, _DIES: ConfigRecord()}
                self._asked[client].content = RecordDict(marked)  # of its own: equal questions share theirs
        return [message for client, message in self._asked.items() if self._drawn.get(client) != "dropout"]

    def _by_client(self, replies: Iterable[FlowerMessage]) -> list[tuple[int, FlowerMessage | None]]:
        return [(client, self._arrived(client, reply)) for client, reply in super()._by_client(replies)]

    def _arrived(self, client: int, reply: FlowerMessage | None) -> FlowerMessage | None:
        fault = self._drawn.get(client)
        if fault in UNHEARD:
            return None
        if fault == "corrupt" and reply is not None and not reply.has_error():
            message, facts = unpacked(reply.content, LARGEST)
            reply.content = packed(cut_short(message), facts)
        return reply


class Died(Exception):
    """A simulated site has died."""


class MortalNode(Node):
    """A site of a simulation, which dies where its question says so."""

    dies = False

    def asked_with(self, question: FlowerMessage) -> "MortalNode":
        """The same, ready for this question."""
        self.dies = _DIES in question.content
        return self

    def _check_reply(self, asked: Message, reply: Message) -> None:
        """The last that happens in a turn before it is saved."""
        super()._check_reply(asked, reply)
        if self.dies:
            raise Died("this site dies at the end of its turn, as the fault model says")
