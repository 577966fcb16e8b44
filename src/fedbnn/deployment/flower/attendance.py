"""Which of Flower's nodes speaks for which site: every new node is asked for its name, and its key is remembered."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.serverapp import Grid

from fedbnn.base.errors import UserError
from fedbnn.base.settings import parsed
from fedbnn.deployment.flower.grid import WatchedGrid
from fedbnn.deployment.flower.replies import facts_of, line
from fedbnn.deployment.flower.wire import packed
from fedbnn.deployment.terms import Terms
from fedbnn.federation.message import BadMessage, Message
from fedbnn.models.architectures import MODELS, ModelSettings, build

LARGEST_MODEL = 2**28  # weights: as many as a message may bring
LONGEST_MODEL = 1000  # signs of a model's name and options
UNKNOWN = "a model that server.toml does not name under models"


class Attendance:
    """The sites that are there.

    Attributes:
        nodes: the node of each site that is there, by the site's index in the terms.
        models: what each site that has ever been there runs.
        keys: fingerprint of the key with which each site came first; the name is that key's from then on. Empty
            where Flower does not authenticate nodes.

    """

    def __init__(
        self,
        terms: Terms,
        tell: Callable[[str], None],
        importable: Collection[str] = (),
        model: ModelSettings | None = None,  # the one that every site must have
    ) -> None:
        self.nodes: dict[int, int] = {}
        self.models: dict[int, ModelSettings] = {}
        self.keys: dict[int, str] = {}
        self._terms = terms
        self._tell = tell
        self._importable = importable
        self._model = model
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
        replies = WatchedGrid(grid, lambda _: None).send_and_receive(asked, timeout=timeout)
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
                yield node, line(str(error))
            except Exception as error:  # whatever it made up, it is this node that does not take part
                yield node, f"what it says cannot be read ({type(error).__name__})"
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
        if self.keys.get(client, key) != key:
            raise BadMessage(f"'{name}' came with another key than before")
        model = parsed(ModelSettings, json.dumps(facts.get("model")), "model")
        if self._model is None:
            model = self._buildable(model)
        elif model.architecture == self._model.architecture:
            model = self._model
        else:
            raise BadMessage(
                f"'{name}' has the model {model.architecture:.200}, server.toml asks for {self._model.architecture}"
            )
        if self.models.get(client, model) != model:
            raise BadMessage(f"'{name}' had the model {self.models[client].architecture} before")
        self.keys[client], self.models[client] = key, model
        self.nodes[client] = node
        self._tell(f"'{name}' is there")

    def _buildable(self, model: ModelSettings) -> ModelSettings:
        """The model, if the server may build it: to build what a node names would be to run code of its choice.

        Otherwise one that nobody can build. Methods that exchange outputs never try to.
        """
        if model.name in self._importable and not model.body:
            return model
        if model.name not in MODELS or model.body:  # whose features the server does not have
            return ModelSettings(UNKNOWN)
        if len(model.architecture) > LONGEST_MODEL:
            raise BadMessage(f"its model has options of more than {LONGEST_MODEL} signs")
        with torch.device("meta"):  # its size without the memory
            made = build(model, self._terms.input_shape, self._terms.outputs)
        if (weights := sum(one.numel() for one in made.parameters())) > LARGEST_MODEL:
            raise BadMessage(f"its model has {weights} weights, more than {LARGEST_MODEL}")
        return model


def _fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest() if public_key else ""
