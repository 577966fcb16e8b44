"""A site on Flower: the ClientApp that answers with what its `Node` says, for every method."""

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from fedbnn.base.errors import UserError
from fedbnn.deployment.agreement import Refused
from fedbnn.deployment.flower.wire import packed, unpacked
from fedbnn.deployment.node import LARGEST, Kind, Node, Request
from fedbnn.federation.engines import ClientFailure
from fedbnn.federation.message import BadMessage, Message

SILENT = "it cannot go on; its log says why"

log = logging.getLogger("flwr")


NodeOf = Callable[[Context, FlowerMessage], Node]
"""The site that answers this question."""


def make_app(node_of: NodeOf, share_errors: bool = False) -> ClientApp:
    """A ClientApp whose sites `node_of` gives; with `share_errors` it tells the server why it cannot go on."""
    made = ClientApp()

    @made.query()
    def hello(message: FlowerMessage, context: Context) -> FlowerMessage:
        return answered("hello", message, lambda: node_of(context, message), share_errors)

    @made.train()
    def update(message: FlowerMessage, context: Context) -> FlowerMessage:
        return answered("update", message, lambda: node_of(context, message), share_errors)

    @made.evaluate()
    def evaluate(message: FlowerMessage, context: Context) -> FlowerMessage:
        return answered("evaluate", message, lambda: node_of(context, message), share_errors)

    return made


def answered(kind: Kind, message: FlowerMessage, find: Callable[[], Node], share_errors: bool) -> FlowerMessage:
    """The reply to one of the server's messages, whatever happens.

    What the server itself asked wrongly is told to it. Why a site cannot go on is written to the site's own log only,
    and the server hears the same words whatever it was: the reason may tell of files, counts or values of records.
    """
    try:
        content = _content(kind, message, find)
    except Refused as error:
        log.error("%s", error)
        content = packed(Message(), {"refused": str(error).removeprefix("refused: ")})
    except Exception as error:
        known = isinstance(error, UserError | ClientFailure)
        text = str(error) if known else "".join(traceback.format_exception(error))
        log.error("failed: %s", text)
        told = {"failed": "user" if isinstance(error, UserError) else "client", "text": text}
        content = packed(Message(), told if share_errors else {"refused": SILENT})
    return FlowerMessage(content, reply_to=message)


def _content(kind: Kind, message: FlowerMessage, find: Callable[[], Node]) -> RecordDict:
    try:
        received, facts = unpacked(message.content, LARGEST)
        request = _request(kind, received, facts)
    except BadMessage as error:  # of the request alone: one that comes later may be of the site's own files
        raise Refused(str(error)) from error
    answer = find().answer(request)
    return packed(answer.message, answer.facts)


def _request(kind: Kind, message: Message, facts: dict[str, object]) -> Request:
    number, terms, foreign = facts.get("round"), facts.get("terms"), facts.get("foreign", False)
    if type(number) is not int or not isinstance(terms, str) or not isinstance(foreign, bool):
        raise BadMessage("a request needs 'round' (a whole number) and 'terms' (a text)")
    return Request(kind, number, terms, message, foreign)


def _node_of(context: Context, _: FlowerMessage) -> Node:
    """The site that the node's own configuration names."""
    site_file = context.node_config.get("site")
    if not isinstance(site_file, str):
        raise UserError("the node was started without --node-config 'site=\"/path/to/site.toml\"'")
    return Node.from_file(Path(site_file))


app = make_app(_node_of)
