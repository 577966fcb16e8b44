"""What nodes reply, whoever wrote it: as agreed, or a BadMessage whose text is one short line.

One site must not end a run: whatever a reply does to its reader, it is that reply which is dropped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from flwr.app import Message as FlowerMessage

from fedbnn.base.wording import one_line
from fedbnn.deployment.flower.wire import unpacked
from fedbnn.federation.evaluation import ALL_SCORES, SOMETIMES, Scored, scored_as
from fedbnn.federation.message import PLAIN_NAME, BadMessage, Message
from fedbnn.runs.results import FIELDS

LONGEST = 500  # signs of a reason
MOST_NUMBERS = 100  # diagnostics of a turn
MOST_VARIANTS = 10
_TAKEN = {*FIELDS, *ALL_SCORES, *SOMETIMES}

Failed = Callable[[str, str], None]
"""Told of a node that shares why it cannot go on: "user" or "client", and why."""


def ignore(kind: str, text: str) -> None:
    """Nobody wants to know more than the reply says."""


class Away(BadMessage):
    """The node told why it has no reply; as may happen to any site, which is no liar for that."""


class Sent(NamedTuple):
    """The reply to an update: arrays, and what its site tells of its turn."""

    message: Message
    info: dict[str, float]
    seconds: float


def sent_by(reply: FlowerMessage, most: int, failed: Failed = ignore) -> Sent:
    """A site's turn, with arrays of at most `most` bytes."""
    message, facts = _content_of(reply, most, failed)
    with _total():
        return Sent(message, _numbers(facts.get("info", {})), _number(facts.get("seconds", 0.0)))


def scores_by(reply: FlowerMessage, failed: Failed = ignore, *, regression: bool = False) -> dict[str, Scored] | None:
    """A site's scores of this task by variant; None where it shares none."""
    facts = facts_of(reply, failed)
    with _total():
        return _evaluations(facts["evaluation"], regression) if "evaluation" in facts else None


def facts_of(reply: FlowerMessage, failed: Failed = ignore) -> dict[str, Any]:
    """The facts of a reply that brings no arrays; a BadMessage with its reason if the node refused or failed."""
    message, facts = _content_of(reply, 0, failed)
    if message.arrays:
        raise BadMessage(line(f"it sent {sorted(message.arrays)}, agreed were no arrays"))
    return facts


def _content_of(reply: FlowerMessage, most: int, failed: Failed) -> tuple[Message, dict[str, Any]]:
    """Arrays and facts of a reply; a BadMessage with its reason if the node refused or failed."""
    with _total():
        if reply.has_error():
            raise Away(f"Flower says: {reply.error.reason or reply.error.code}")
        message, facts = unpacked(reply.content, most)
    if "failed" in facts:
        failed(str(facts["failed"]), str(facts.get("text")))
        raise Away(line(f"it failed: {facts.get('text')}"))
    if "refused" in facts:
        raise Away(line(f"it refuses: {facts['refused']}"))
    return message, facts


@contextmanager
def _total() -> Iterator[None]:
    """Every exception becomes a BadMessage of one line."""
    try:
        yield
    except BadMessage as error:
        raise type(error)(line(str(error))) from error
    except Exception as error:
        raise BadMessage(f"it cannot be read ({type(error).__name__})") from error


def line(text: str) -> str:
    """Reasons come from nodes and are printed: they are cut, and kept to one line."""
    return one_line(text, LONGEST)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:
        raise BadMessage("a fact of its reply is not a finite number")
    return float(value)


def _numbers(facts: object) -> dict[str, float]:
    if not isinstance(facts, dict) or len(facts) > MOST_NUMBERS:
        raise BadMessage("its diagnostics are not numbers by name")
    if wrong := [name for name in facts if not PLAIN_NAME.fullmatch(name) or name in _TAKEN]:
        raise BadMessage(f"it calls a diagnostic {wrong[0]!r:.100}")
    return {name: _number(value) for name, value in facts.items()}


def _evaluations(facts: object, regression: bool) -> dict[str, Scored]:
    if not isinstance(facts, dict) or not 0 < len(facts) <= MOST_VARIANTS:
        raise BadMessage("they are not scores by variant")
    if wrong := [name for name in facts if not PLAIN_NAME.fullmatch(name)]:
        raise BadMessage(f"they are of a variant {wrong[0]!r:.100}")
    try:
        return {variant: scored_as(one, regression=regression) for variant, one in facts.items()}
    except ValueError as error:
        raise BadMessage(f"they cannot be read: {error}") from error
