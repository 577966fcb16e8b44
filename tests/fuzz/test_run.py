"""A whole run in which one site is hostile: it ends as if that site were not there, and says so."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedbnn.deployment.flower.attendance import Attendance
from fedbnn.deployment.flower.serve import _summary
from fedbnn.federation.intake import joined
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import ABSURD, Integers, shape_of
from fedbnn.federation.message import Message as OurMessage
from fedbnn.federation.server import Server
from fedbnn.methods import FedBNN, FedMD
from fedbnn.privacy.sums import UNIT
from fedbnn.runs.results import metric_lines
from tests.deployment.flower.direct_grid import DirectGrid
from tests.deployment.flower.test_strategy import World, configured
from tests.federation_sample import SMALL_METHODS, described
from tests.fuzz import corpus

HOSTILE = 1  # of three clients
POINTS, CLASSES = 20, 10


def with_array(data: bytes) -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({"phi": Array("float32", (1,), "numpy.ndarray", data)}),
            "facts": ConfigRecord({"json": "{}"}),
        }
    )


def with_facts(text: str) -> RecordDict:
    arrays = ArrayRecord({"phi": Array(torch.full((POINTS, CLASSES), 0.1).numpy())})
    return RecordDict({"arrays": arrays, "facts": ConfigRecord({"json": text})})


def items() -> Iterator[RecordDict]:
    """Everything in the corpus that a reply can hold."""
    yield RecordDict()
    for data in corpus.NPY.values():
        yield with_array(data)
    for text in corpus.FACTS.values():
        yield with_facts(text)


def told_well(world: World) -> bool:
    return all(text.isprintable() and len(text) < 700 for text in world.told)


def introduction(world: World, client: int, model: str = '{"name": "mlp", "options": {}}') -> str:
    return f'{{"name": "{world.terms.sites[client]}", "terms": "{world.terms.digest}", "model": {model}}}'


def test_sites_that_answer_with_everything_in_the_corpus_end_no_run(tmp_path: Path) -> None:
    """Two sites are real, ten others send another item of the corpus each time: to be taken in, and to be scored."""
    count, train, scores = len(list(items())), items(), items()
    honest, rounds = (0, 1), -(-count // 10)
    config = configured(FedMD(digest_steps=1), f"rounds={rounds - 1}", "partition.clients=12")
    world = World(config, tmp_path)
    world.strategy.server.patience = 1000  # each of them is to be heard to the end
    for client in range(2, 12):
        world.grid.nodes[world.number[client]] = answering(introduction(world, client), train, scores)
    world.strategy.run_rounds(world.grid)
    assert [record.number for record in world.rounds] == list(range(rounds))
    assert next(train, None) is next(scores, None) is None
    for record in world.rounds:
        assert [record.turns[client].rejected for client in honest] == ["", ""]
        assert tuple(record.scores) == honest
    dropped = [turn.rejected for record in world.rounds for turn in record.turns.values() if turn.rejected]
    assert len(dropped) > 80
    assert told_well(world)
    lines = [line for record in world.rounds for line in metric_lines(record, world.terms.sites)]
    summary = _summary(json.loads(json.dumps(lines, allow_nan=False)), world.terms)
    assert [summary[world.terms.sites[client]]["turns"] for client in honest] == [rounds] * 2


def answering(greeting: str, train: Iterator[RecordDict], scores: Iterator[RecordDict]) -> ClientApp:
    app, nothing = greeted_by(greeting), with_facts("{}")

    @app.train()
    def update(message: Message, context: Context) -> Message:
        return Message(next(train, nothing), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(next(scores, nothing), reply_to=message)

    return app


def greeted_by(text: str) -> ClientApp:
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": ArrayRecord(), "facts": ConfigRecord({"json": text})})
        return Message(content, reply_to=message)

    return app


VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the largest": lambda array: torch.full_like(array, 3.4e38),
    "as large as a count may be": lambda array: torch.full_like(array, 1e9),
    "as large as may be": lambda array: torch.full_like(array, ABSURD),
    "as small as may be": lambda array: torch.full_like(array, -ABSURD),
    "large both ways": lambda array: torch.where(torch.arange(array.numel()) % 2 == 0, ABSURD, -ABSURD).view_as(array),
    "minus one": lambda array: torch.full_like(array, -1),
    "nothing": torch.zeros_like,
    "almost nothing": lambda array: torch.full_like(array, 1e-45),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_no_values_of_one_site_leave_a_server_with_what_no_site_would_take(method: Any, value: str) -> None:
    """Without local training: what sites send at the start, and one of them whatever it likes, three times."""
    sites = sites_for(method)
    server = Server(method, roster_of(sites))
    for _ in range(3):
        replies = {client: honest(server, client) for client in range(3)}
        hostile = {name: VALUES[value](array.float()) for name, array in replies[HOSTILE].arrays.items()}
        replies[HOSTILE] = OurMessage({n: a.to(replies[HOSTILE].arrays[n].dtype) for n, a in hostile.items()})
        accepted = {client: reply for client, reply in replies.items() if not server.refusal(client, reply)}
        assert accepted.keys() >= {0, 2}
        state, spoilt = joined(server, accepted)
        assert state is not None
        assert spoilt in ([], [HOSTILE])
        server.finish(state)
    for client in range(3):
        for array in server.method.broadcast(server.state, client).arrays.values():
            assert bool((array.abs() <= 1e6).all())


def honest(server: Server, client: int) -> OurMessage:
    """Something that a site might send: numbers of the size of weights, or probabilities."""
    generator = torch.Generator().manual_seed(client)
    agreed = server.method.expected_upload(server.roster, client)
    arrays = {}
    for name, form in agreed.items():
        values = torch.randn(shape_of(form), generator=generator) * 0.1
        if isinstance(form, Integers):
            arrays[name] = (values / UNIT).long()
        else:
            arrays[name] = values.softmax(-1) if name == "phi" else values.abs() if name != "weights" else values
    return OurMessage(arrays)


_SITES: dict[tuple[str, ...], Any] = {}


def sites_for(method: Any) -> Any:
    from fedbnn.runs.experiment import Prepared
    from tests.federation_sample import models_for

    key = models_for(method)
    if key not in _SITES:
        config = configured(method)
        _SITES[key] = Prepared.of(config, [config.method]).sites
    return _SITES[key]


# Who are you?


OPTIONS: tuple[dict[str, Any], ...] = (
    {"hidden": [10**9, 10**9]},
    {"hidden": [10**18]},
    {"hidden": [-5]},
    {"hidden": "all"},
    {"hidden": [1] * 100_000},
    {"depth": 3},
    {"input_shape": [1]},
)


def test_no_greeting_ends_the_waiting(tmp_path: Path) -> None:
    """All of them before the real sites say who they are."""
    world = World(configured(FedBNN(prior_steps=1, mc_samples=1)), tmp_path)
    models = [value for value in corpus.VALUES.values() if value != "{}"]  # that would be the default
    models += [json.dumps({"name": "mlp", "options": options}) for options in OPTIONS]
    texts = [
        *corpus.FACTS.values(),
        *(introduction(world, 0, model) for model in models),
        *(f'{{"name": {value}}}' for value in corpus.VALUES.values()),
    ]
    liars = {number + 1: greeted_by(text) for number, text in enumerate(texts)}
    attendance = Attendance(world.terms, world.told.append)
    attendance.greet(DirectGrid({**liars, **{1000 + number: node for number, node in world.grid.nodes.items()}}), 60.0)
    assert attendance.nodes == {client: 1000 + number for client, number in world.number.items()}
    assert len(attendance.refused) == len(liars)
    assert told_well(world)


def test_a_reply_that_flower_cannot_read_is_found_when_nodes_are_greeted(tmp_path: Path) -> None:
    world = World(configured(FedBNN(prior_steps=1, mc_samples=1)), tmp_path)

    class Breaking(DirectGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = super().pull_messages(message_ids)
            if any("broken" in str(reply.content) for reply in found):
                raise RecursionError("made up")  # and all of them are gone, as on a real link
            return found

    grid = Breaking({1: greeted_by('{"name": "broken"}'), **world.grid.nodes})
    world.strategy.attendance.greet(grid, 1.0)
    assert world.strategy.attendance.nodes == world.number
    assert any("its reply cannot be read (RecursionError)" in text for text in world.told)
