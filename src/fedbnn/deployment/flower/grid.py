"""Flower's grid, asked more often, with news of every reply, and unharmed by one that cannot be read or never ends.

Every reply is pulled by itself, in a thread of its own. Flower deletes replies as they are pulled, so one that breaks
the reading would take those along that were pulled with it; and one that was announced and is never sent holds up
whoever pulls it for as long as Flower tries again, which is far longer than any round.
"""

import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

POLL, SELDOM = 0.2, 3.0  # seconds between looks, at first and after a long time; Flower's own loop sleeps three
SHARE = 0.05  # of the time that a reply took, which may be lost by looking late
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
        end = None if timeout is None else time.monotonic() + timeout
        came: SimpleQueue[Message] = SimpleQueue()
        over = Event()
        for message in pushed:
            Thread(target=self._wait_for, args=(message, came, over), daemon=True).start()
        replies: list[Message] = []
        try:
            while len(replies) < len(pushed):
                reply = came.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
                self._on_reply(reply)
                replies.append(reply)
        except Empty:
            pass  # the others did not answer in time
        finally:
            over.set()
        return replies

    def _wait_for(self, message: Message, came: SimpleQueue[Message], over: Event) -> None:
        """Look for the reply to one message until it is there or nobody wants it any more."""
        began = time.monotonic()
        while not over.is_set():
            if (reply := self._reply_to(message)) is not None:
                came.put(reply)
                return
            over.wait(min(max(POLL, SHARE * (time.monotonic() - began)), SELDOM))

    def _reply_to(self, message: Message) -> Message | None:
        asked = message.metadata.message_id
        try:
            found = list(self._grid.pull_messages([asked]))
            if any(reply.metadata.reply_to_message_id != asked for reply in found):
                raise ValueError("it replies to another message")
        except Exception as error:  # what a node made up may break any part of the reading
            return Message(Error(UNREADABLE, f"its reply cannot be read ({type(error).__name__})"), reply_to=message)
        return found[0] if found else None
