"""Which of Flower's nodes speaks for which site: every new node is asked for its name, and its key is remembered."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.serverapp import Grid

from fedbnn.base.errors import UserError
from fedbnn.base.settings import parsed
from fedbnn.deployment.flower.wire import packed, unpacked
from fedbnn.deployment.terms import Terms
from fedbnn.federation.message import BadMessage, Message
from fedbnn.models.architectures import MODELS, ModelSettings

UNKNOWN = "a model that server.toml does not name under models"


class Attendance:
    """The sites that are there.

    Attributes:
        nodes: the node of each site that is there, by the site's index in the terms.
        models: what each site that has ever been there runs.
        keys: fingerprint of the key with which each site came first; the name is that key's from then on. Empty
            where Flower does not authenticate nodes.

    """

    def __init__(self, terms: Terms, tell: Callable[[str], None], importable: Collection[str] = ()) -> None:
        self.nodes: dict[int, int] = {}
        self.models: dict[int, ModelSettings] = {}
        self.keys: dict[int, str] = {}
        self._terms = terms
        self._tell = tell
        self._importable = importable
        self._refused: dict[int, str] = {}  # by node, the reason that was told last

    @property
    def complete(self) -> bool:
        """Whether every site has been there."""
        return len(self.models) == len(self._terms.sites)

    @property
    def missing(self) -> list[str]:
        """Names of the sites that are not there."""
        return [name for client, name in enumerate(self._terms.sites) if client not in self.nodes]

    @property
    def refused(self) -> list[str]:
        """Why nodes that are there do not take part."""
        return [f"node {node}: {reason}" for node, reason in self._refused.items()]

    def greet(self, grid: Grid, timeout: float) -> None:
        """Ask every node that is not known yet who it is; forget those that have gone."""
        keys = {info.node_id: _fingerprint(info.public_key) for info in grid.get_nodes()}
        self.nodes = {client: node for client, node in self.nodes.items() if node in keys}
        self._refused = {node: reason for node, reason in self._refused.items() if node in keys}
        known = set(self.nodes.values())
        facts = {"round": -1, "terms": self._terms.to_json()}
        asked = [
            FlowerMessage(packed(Message(), facts), dst_node_id=node, message_type=MessageType.QUERY, ttl=timeout)
            for node in sorted(keys)
            if node not in known
        ]
        replies = grid.send_and_receive(asked, timeout=timeout) if asked else []
        for node, reason in self._introductions(asked, replies, keys):
            if self._refused.get(node) != reason:
                self._tell(f"node {node} does not take part: {reason}")
            self._refused[node] = reason

    def _introductions(
        self, asked: list[FlowerMessage], replies: Any, keys: Mapping[int, str]
    ) -> Iterator[tuple[int, str]]:
        """Take in who introduced themselves; the nodes that cannot take part, and why."""
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in asked}
        for reply in sorted(replies, key=lambda one: nodes.get(one.metadata.reply_to_message_id, -1)):
            node = nodes.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                self._introduce(node, keys[node], facts_of(reply))
                self._refused.pop(node, None)
            except (BadMessage, UserError) as error:
                yield node, str(error)
        for node in nodes.values():
            yield node, "it did not say who it is in time"

    def _introduce(self, node: int, key: str, facts: Mapping[str, Any]) -> None:
        name = facts.get("name")
        if name not in self._terms.sites:
            raise BadMessage(f"it calls itself {name!r:.100}, which is no site of these terms")
        if facts.get("terms") != self._terms.digest:
            raise BadMessage(f"'{name}' has agreed to other terms")
        client = self._terms.sites.index(name)
        if client in self.nodes:
            raise BadMessage(f"'{name}' is there already, as node {self.nodes[client]}")
        if self.keys.setdefault(client, key) != key:
            raise BadMessage(f"'{name}' came with another key than before")
        model = self._buildable(parsed(ModelSettings, json.dumps(facts.get("model")), "model"))
        if self.models.setdefault(client, model) != model:
            raise BadMessage(f"'{name}' had the model {self.models[client].architecture} before")
        self.nodes[client] = node
        self._tell(f"'{name}' is there")

    def _buildable(self, model: ModelSettings) -> ModelSettings:
        """The model, if the server may build it: to build what a node names would be to run code of its choice.

        Otherwise one that nobody can build. Methods that exchange outputs never try to.
        """
        known = model.name in MODELS or model.name in self._importable
        return model if known else ModelSettings(UNKNOWN)


Failed = Callable[[str, str], None]


def _ignore(kind: str, text: str) -> None:
    """Nobody wants to know more than the reply says."""


def facts_of(reply: FlowerMessage, failed: Failed = _ignore) -> dict[str, Any]:
    """The facts of a reply that brings no arrays; a BadMessage with its reason if the node refused or failed."""
    message, facts = content_of(reply, 0, failed)
    if message.arrays:
        raise BadMessage(f"it sent {sorted(message.arrays)}, agreed were no arrays")
    return facts


def content_of(reply: FlowerMessage, most: int, failed: Failed = _ignore) -> tuple[Message, dict[str, Any]]:
    """Arrays of at most `most` bytes and facts of a reply; a BadMessage with its reason if the node refused or failed.

    Reasons come from nodes and are printed: they are cut, and kept to one line.
    """
    if reply.has_error():
        raise BadMessage(_line(f"Flower says: {reply.error.reason or reply.error.code}"))
    message, facts = unpacked(reply.content, most)
    if "failed" in facts:
        failed(str(facts["failed"]), str(facts.get("text")))
        raise BadMessage(_line(f"it failed: {facts.get('text')}"))
    if "refused" in facts:
        raise BadMessage(_line(f"it refuses: {facts['refused']}"))
    return message, facts


def _line(text: str) -> str:
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(printable.split())[:500]


def _fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest() if public_key else ""
