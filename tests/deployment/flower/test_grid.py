"""No reply keeps the others away: not one that cannot be read, and not one that is announced and never sent."""

import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from fedbnn.deployment.flower.grid import WatchedGrid
from tests.deployment.flower.direct_grid import DirectGrid

NODES = (1, 2, 3)
BAD = 2


class LossyGrid(DirectGrid):
    """As Flower's: what was pulled is gone, also if its reading fails, and a reply that never comes is waited for."""

    def __init__(self, kind: str) -> None:
        super().__init__(dict.fromkeys(NODES, echo()))
        self.kind = kind
        self.node: dict[str, int] = {}
        self.released = threading.Event()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        ids = super().push_messages(pushed)
        self.node |= {one: message.metadata.dst_node_id for one, message in zip(ids, pushed, strict=True)}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = super().pull_messages(ids := list(message_ids))
        if BAD in {self.node[one] for one in ids}:
            if self.kind == "unreadable":
                raise RecursionError("made up")
            if self.kind == "never sent":
                self.released.wait(60)
            if self.kind == "to another":
                [other] = [one for one, node in self.node.items() if node == NODES[0]]
                found[0].metadata.__dict__["_reply_to_message_id"] = other
        return found


def echo() -> ClientApp:
    app = ClientApp()

    @app.train()
    def update(message: Message, context: object) -> Message:
        return Message(RecordDict(), reply_to=message)

    return app


@pytest.fixture
def grid(request: pytest.FixtureRequest) -> Iterator[LossyGrid]:
    made = LossyGrid(request.param)
    yield made
    made.released.set()


def replies_of(grid: LossyGrid, timeout: float) -> dict[int, str]:
    """By node: why its reply is an error, empty where it is none."""
    asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in NODES]
    heard: list[Message] = []
    replies = WatchedGrid(grid, heard.append).send_and_receive(asked, timeout=timeout)
    assert heard == replies
    return {
        grid.node[reply.metadata.reply_to_message_id]: reply.error.reason if reply.has_error() else ""
        for reply in replies
    }


@pytest.mark.parametrize("grid", ["never sent"], indirect=True)
def test_a_reply_that_is_announced_and_never_sent_is_not_waited_for(grid: LossyGrid) -> None:
    began = time.monotonic()
    assert replies_of(grid, timeout=1.0) == {1: "", 3: ""}
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("grid", "reason"), [("unreadable", "RecursionError"), ("to another", "ValueError")], indirect=["grid"]
)
def test_a_reply_that_cannot_be_read_takes_no_other_with_it(grid: LossyGrid, reason: str) -> None:
    assert replies_of(grid, timeout=30.0) == {1: "", BAD: f"its reply cannot be read ({reason})", 3: ""}
