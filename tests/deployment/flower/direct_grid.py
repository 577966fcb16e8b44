"""A grid without a network: messages go straight to ClientApps in this process, in Flower's own serialisation."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

Spoil = Callable[[Message], Message | None]
"""What happens to a reply on its way; None: it is lost."""


class DirectGrid(Grid):
    """Nodes by number, each a ClientApp; `spoils` are done to the replies of some."""

    def __init__(
        self, nodes: Mapping[int, ClientApp], spoils: Mapping[int, Spoil] | None = None, keys: Mapping[int, bytes] = {}
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.nodes = dict(nodes)
        self.spoils = dict(spoils or {})
        self.keys = dict(keys)
        self.replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.object_id)
            node = message.metadata.dst_node_id
            reply = self._answer(node, message)
            spoil = self.spoils.get(node)
            spoilt = reply if spoil is None or message.metadata.message_type == "query" else spoil(reply)
            if spoilt is not None:
                self.replies[message.metadata.message_id] = spoilt
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(one) for one in message_ids if one in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, node: int, message: Message) -> Message:
        if node not in self.nodes:
            return Message(Error(5, "Node Unavailable"), reply_to=message)
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        return sent(self.nodes[node](sent(message), context))


def sent(message: Message) -> Message:
    """The message as it comes out of Flower's serialisation."""
    objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    received = inflate_object_from_contents(message.object_id, objects)
    received.metadata.__dict__["_message_id"] = message.metadata.message_id or message.object_id
    return received
