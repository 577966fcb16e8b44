"""Flower's grid, asked more often, with news of every reply, and unharmed by one that cannot be read."""

import time
from collections.abc import Callable, Iterable

from flwr.app import Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

POLL = 0.2  # seconds; Flower's own loop sleeps three
UNREADABLE = 1  # Flower's code of an unknown error


class WatchedGrid(Grid):
    """Another grid, of which `send_and_receive` is our own: `heard` is told of every reply as it comes."""

    def __init__(self, grid: Grid, heard: Callable[[Message], None]) -> None:
        self._grid = grid
        self._heard = heard

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies that came within `timeout` seconds, an error in the place of one that cannot be read."""
        sent = {message.metadata.message_id: message for message in self._pushed(list(messages))}
        end = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while sent:
            for reply in self._pulled(sent):
                sent.pop(reply.metadata.reply_to_message_id, None)
                self._heard(reply)
                replies.append(reply)
            if not sent or (end is not None and time.monotonic() > end):
                break
            time.sleep(POLL)
        return replies

    def _pushed(self, messages: list[Message]) -> list[Message]:
        if messages:
            self._grid.push_messages(messages)  # gives each its id
        return messages

    def _pulled(self, sent: dict[str, Message]) -> list[Message]:
        try:
            return list(self._grid.pull_messages(list(sent)))
        except Exception:  # what a node made up may break any part of the reading: find out whose it is
            return [reply for message in list(sent.values()) for reply in self._pulled_alone(message)]

    def _pulled_alone(self, message: Message) -> list[Message]:
        try:
            return list(self._grid.pull_messages([message.metadata.message_id]))
        except Exception as error:
            return [Message(Error(UNREADABLE, f"its reply cannot be read: {error}"), reply_to=message)]
