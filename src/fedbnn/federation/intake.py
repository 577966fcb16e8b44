"""Finishing a round with replies of which each is as agreed, though not all may be meant well.

A reply of the right form can still make a server's arithmetic fail, or give it something that no site would take, such
as a mean of numbers that are too large. Whose it is, is found out by leaving replies away.
"""

from collections.abc import Mapping

from fedbnn.federation.message import BadMessage, Message, check_sent
from fedbnn.federation.method import State
from fedbnn.federation.server import Server

SPOILS = "with it the server cannot go on"


def joined(server: Server, accepted: Mapping[int, Message]) -> tuple[State | None, list[int]]:
    """The server's state after the next round with these replies but those that spoil it, and who sent these.

    Everybody, where no part of the replies will do; then there is no state. Where the arithmetic fails for each of
    several alone, the mistake is not theirs, and its exception is raised. A BadMessage is theirs: the arithmetic went
    well, and no site would take what came out.
    """
    state = _after(server, accepted)
    if isinstance(state, State):
        return state, []
    alone = {client: _after(server, {client: reply}) for client, reply in accepted.items()}
    spoilt = [client for client, found in alone.items() if isinstance(found, Exception)]
    if len(spoilt) == len(accepted) > 1:
        if any(isinstance(found, BadMessage) for found in (state, *alone.values())):
            return None, spoilt
        raise state
    for left_out in [spoilt] if spoilt else [[client] for client in accepted]:
        rest = {client: reply for client, reply in accepted.items() if client not in left_out}
        found = _after(server, rest)
        if rest and isinstance(found, State):
            return found, left_out
    return None, list(accepted)


def _after(server: Server, accepted: Mapping[int, Message]) -> State | Exception:
    """The server's state after a round with these replies, or why it would be of no use."""
    try:
        state = server.after(accepted)
        messages = server.messages(range(server.roster.clients), state)
        for message in {id(message): message for message in messages.values()}.values():
            check_sent(message)
    except Exception as error:  # what a node made up may break any part of the arithmetic
        return error
    return state
