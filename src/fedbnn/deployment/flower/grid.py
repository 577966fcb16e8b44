"""Flower's grid, asked more often, with news of every reply, and unharmed by one that cannot be read."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

POLL = 0.2  # seconds; Flower's own loop sleeps three
UNREADABLE = 1  # Flower's code of an unknown error


class WatchedGrid:
    """Another grid, of which `send_and_receive` is our own: `on_reply` is called with every reply as it comes."""

    def __init__(self, grid: Grid, on_reply: Callable[[Message], None]) -> None:
        self._grid = grid
        self._on_reply = on_reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies that came within `timeout` seconds, an error in the place of one that cannot be read."""
        pushed = list(messages)
        if pushed:
            self._grid.push_messages(pushed)  # gives each its id
        sent = {message.metadata.message_id: message for message in pushed}
        end = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while sent:
            for reply in self._pulled(sent):
                sent.pop(reply.metadata.reply_to_message_id, None)
                self._on_reply(reply)
                replies.append(reply)
            if not sent or (end is not None and time.monotonic() > end):
                break
            time.sleep(POLL)
        return replies

    def _pulled(self, sent: dict[str, Message]) -> list[Message]:
        try:
            return list(self._grid.pull_messages(list(sent)))
        except Exception:  # what a node made up may break any part of the reading: find out whose it is
            return [reply for message in list(sent.values()) for reply in self._pulled_alone(message)]

    def _pulled_alone(self, message: Message) -> list[Message]:
        try:
            return list(self._grid.pull_messages([message.metadata.message_id]))
        except Exception as error:
            return [Message(Error(UNREADABLE, f"its reply cannot be read ({type(error).__name__})"), reply_to=message)]
