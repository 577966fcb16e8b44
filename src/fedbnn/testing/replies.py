"""What clients send is what the server expects, and the server takes in nothing else."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedbnn.federation.engines import Site
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import BadMessage, Integers, Message, UploadSpec, check
from fedbnn.federation.method import Method
from fedbnn.federation.server import Server
from fedbnn.testing.sample import SEED, moments, sample_sites


def check_replies(method: Method[Any, Any], sites: Sequence[Site] | None = None) -> None:
    """Every reply has exactly the names, shapes, types and ranges of `expected_upload`."""
    sites = sites or sample_sites(method)
    roster = roster_of(sites)
    for moment in moments(method, sites):
        for client, reply in moment.replies.items():
            try:
                check(reply, method.expected_upload(roster, client))
            except BadMessage as error:
                raise AssertionError(
                    f"method '{method.name}', round {moment.number}: the server would drop the reply of client "
                    f"{client}: {error}; make client_update and expected_upload agree"
                ) from None


def check_hostile_replies(method: Method[Any, Any], sites: Sequence[Site] | None = None) -> None:
    """A reply that is not as agreed is refused, and the server goes on with the others, or with none at all."""
    sites = sites or sample_sites(method)
    roster = roster_of(sites)
    server = Server(method, roster, seed=SEED)
    for moment in moments(method, sites):
        server.state, server.round_number = moment.server, moment.number - 1
        for client, reply in moment.replies.items():
            for what, bad in hostile(reply, method.expected_upload(roster, client)):
                assert server.refusal(client, bad), (
                    f"method '{method.name}', round {moment.number}: a reply with {what} would be taken in: "
                    "expected_upload must name every array with its shape"
                )
        for only in (None, *moment.replies):
            server.state, server.round_number = moment.server, moment.number - 1
            try:
                server.take_in({one: reply for one, reply in moment.replies.items() if one == only})
                server.messages(range(roster.clients))
            except Exception as error:
                raise AssertionError(
                    f"method '{method.name}', round {moment.number}: server_update fails where only "
                    f"{'nobody' if only is None else f'client {only}'} replied ({type(error).__name__}: {error}): "
                    "others may be away, or refused"
                ) from error
            finite = all(bool(tensor.isfinite().all()) for tensor in server.state.tensors().values())
            assert finite, f"method '{method.name}', round {moment.number}: few replies give values that are not finite"


def hostile(reply: Message, expected: UploadSpec) -> Iterator[tuple[str, Message]]:
    """Everything that may be wrong with a reply, one thing at a time."""
    arrays = dict(reply.arrays)
    yield "an array that nobody asked for", Message({**arrays, "surprise": torch.zeros(1)})
    for name, array in arrays.items():
        others = {key: value for key, value in arrays.items() if key != name}
        yield f"'{name}' missing", Message(others)
        yield f"'{name}' under another name", Message({**others, f"{name}_": array})
        yield f"'{name}' in another shape", Message({**others, name: array.unsqueeze(0)})
        yield f"'{name}' twice as long", Message({**others, name: array.repeat(2, *[1] * (array.dim() - 1))})
        whole = isinstance(form := expected[name], Integers)
        yield f"'{name}' of another type", Message({**others, name: array.to(torch.int32 if whole else torch.float64)})
        if isinstance(form, Integers):
            yield f"'{name}' beyond its bound", Message({**others, name: torch.full_like(array, form.most + 1)})
        else:
            for value in (torch.nan, torch.inf, -torch.inf, 3e38, -3e38):
                spoiled = array.clone()
                spoiled.view(-1)[-1:] = value
                yield f"{value} in '{name}'", Message({**others, name: spoiled})
