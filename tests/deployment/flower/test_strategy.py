"""The strategy over real nodes: equal to the local engine for every method, and unharmed by bad replies."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedbnn.base.errors import UserError
from fedbnn.deployment.flower.attendance import Attendance
from fedbnn.deployment.flower.client_app import make_app
from fedbnn.deployment.flower.replies import facts_of
from fedbnn.deployment.flower.strategy import FederationStrategy
from fedbnn.deployment.flower.wire import packed
from fedbnn.deployment.node import Answer, Node, Request
from fedbnn.deployment.terms import Terms
from fedbnn.federation.engines import ClientFailure, Site
from fedbnn.federation.loop import Federation, Round, roster_of
from fedbnn.federation.message import BadMessage
from fedbnn.federation.message import Message as OurMessage
from fedbnn.federation.method import Method
from fedbnn.federation.server import MOST_FAILURES, Server
from fedbnn.methods import FedAvg
from fedbnn.runs.config import Config
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import small_config
from tests.deployment.flower.direct_grid import DirectGrid, Spoil, sent
from tests.federation_sample import SMALL_METHODS, described, models_for

ROUNDS = 2


def configured(method: Method[Any, Any], *changes: str) -> Config:
    models = ", ".join(f'{{name="{name}"}}' for name in models_for(method))
    config = small_config(method.name, f"rounds={ROUNDS}", f"models=[{models}]", *changes)
    object.__setattr__(config, "methods", config.methods.model_copy(update={method.name: method}))
    return config


class World:
    """A federation over a DirectGrid, whose sites keep their states in a folder."""

    def __init__(self, config: Config, folder: Path, spoils: dict[int, Spoil] | None = None, quorum: int = 1) -> None:
        prepared = Prepared.of(config, [config.method])
        self.config, self.folder = config, folder
        self.sites = prepared.sites
        self.terms = Terms.of(config, prepared.data, "trial")
        # Node numbers run against the order of the sites: nothing may hang on them.
        self.number = {client: 1000 - client for client in range(len(self.sites))}
        nodes = {self.number[site.client.index]: self.app(site) for site in self.sites}
        self.grid = DirectGrid(nodes, {self.number[client]: spoil for client, spoil in (spoils or {}).items()})
        self.told: list[str] = []
        self.rounds: list[Round] = []
        self.strategy = self.new_strategy(quorum)

    def app(self, site: Site) -> ClientApp:
        node = Node(self.terms, site, self.folder / str(site.client.index), share_metrics=True)
        return make_app(lambda *_: node)

    def new_strategy(self, quorum: int = 1) -> FederationStrategy:
        config = self.config
        server = Server(
            config.chosen(),
            roster_of(self.sites),
            seed=config.seed,
            participation=config.participation,
            quorum=quorum,
        )
        attendance = Attendance(self.terms, self.told.append)
        return FederationStrategy(
            self.terms,
            server,
            attendance,
            timeout=0.3,
            tell=self.told.append,
            finished=self.rounds.append,
        )


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_every_method_is_equal_to_the_local_engine(method: Method[Any, Any], tmp_path: Path) -> None:
    config = configured(method, "participation=0.6")
    world = World(config, tmp_path)
    world.strategy.run_rounds(world.grid)
    local = Federation(method, world.sites, seed=config.seed, participation=0.6)
    expected = local.run(ROUNDS)
    ours, theirs = world.strategy.server.state.tensors(), local.server.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for mine, other in zip(world.rounds, expected, strict=True):
        assert mine.number == other.number
        assert {c: t.bytes_up for c, t in mine.turns.items()} == {c: t.bytes_up for c, t in other.turns.items()}
        for client, variants in other.scores.items():
            assert {v: e.scores for v, e in mine.scores[client].items()} == {v: e.scores for v, e in variants.items()}


def answering(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Spoil:
    """A node that changes the arrays of its replies."""

    def spoil(reply: Message) -> Message:
        from fedbnn.deployment.flower.wire import unpacked

        message, facts = unpacked(reply.content, 10**9)
        if message.arrays:
            reply.content = packed(OurMessage(change(dict(message.arrays))), facts)
        return sent(reply)

    return spoil


def with_nan(arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    arrays["phi"][0, 0] = float("nan")
    return arrays


BAD: dict[str, tuple[Spoil, str]] = {
    "nan": (answering(with_nan), "'phi' holds values that are not finite"),
    "shape": (answering(lambda arrays: {"phi": arrays["phi"][:-1]}), "agreed was (20, 10)"),
    "huge": (
        answering(lambda arrays: {"phi": arrays["phi"].repeat(100, 1)}),
        "agreed were at most 800",
    ),
    "double": (answering(lambda arrays: {"phi": arrays["phi"].double()}), "agreed are float32 and int64"),
    "names": (answering(lambda arrays: {**arrays, "more": torch.zeros(1)}), "it holds ['more', 'phi']"),
    "nothing": (lambda reply: None, "it did not answer in time"),
    "records": (lambda reply: _with(reply, RecordDict()), "it holds the records []"),
}


def _with(reply: Message, content: RecordDict) -> Message:
    reply.content = content
    return sent(reply)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_dropped_and_named_and_the_others_are_unharmed(kind: str, tmp_path: Path) -> None:
    spoil, words = BAD[kind]
    method = SMALL_METHODS[0]
    config = configured(method)
    world = World(config, tmp_path, {1: spoil})
    name = world.terms.sites[1]
    world.strategy.run_rounds(world.grid)
    dropped = [text for text in world.told if f"the reply of '{name}' is dropped" in text]
    assert len(dropped) == ROUNDS + 1
    assert all(words in text for text in dropped), dropped
    for record in world.rounds:
        assert record.turns[1].rejected
        assert not any(turn.rejected for client, turn in record.turns.items() if client != 1)
    # The consensus is that of the others alone: the same in which the bad one was never there.
    without = World(config, tmp_path / "without", {1: lambda reply: None})
    without.strategy.run_rounds(without.grid)
    ours, theirs = (w.strategy.server.state.tensors() for w in (world, without))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("lies", [True, False], ids=["lies", "silent"])
def test_a_site_that_keeps_lying_is_set_aside_and_one_that_is_silent_is_not(lies: bool, tmp_path: Path) -> None:
    """Huge finite numbers: the others fare as if it never answered, and after three of them it is not asked again."""
    config = configured(SMALL_METHODS[0], "rounds=4")
    spoil = answering(lambda arrays: {"phi": torch.full_like(arrays["phi"], 1e38)})
    world = World(config, tmp_path, {1: spoil if lies else lambda reply: None})
    name = world.terms.sites[1]
    world.strategy.run_rounds(world.grid)
    assert [list(record.set_aside) for record in world.rounds] == [[], [], [1] if lies else [], [], []]
    assert [1 in record.turns for record in world.rounds] == [True] * 3 + [not lies] * 2
    told = f"round 2: '{name}' is set aside for the rest of the run: 3 replies in a row were not as agreed"
    assert (told in world.told) == lies
    without = World(config, tmp_path / "without", {1: lambda reply: None})
    without.strategy.run_rounds(without.grid)
    ours, theirs = (w.strategy.server.state.tensors() for w in (world, without))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_scores_that_cannot_be_read_are_dropped(tmp_path: Path) -> None:
    def spoil(reply: Message) -> Message:
        from fedbnn.deployment.flower.wire import unpacked

        message, facts = unpacked(reply.content, 10**9)
        if "evaluation" in facts:
            reply.content = packed(message, {"evaluation": {"personal": {"scores": "all of them"}}})
        return sent(reply)

    world = World(configured(SMALL_METHODS[0]), tmp_path, {2: spoil})
    world.strategy.run_rounds(world.grid)
    assert all(2 not in record.scores and 0 in record.scores for record in world.rounds)
    assert any("the scores of" in text and "are dropped" in text for text in world.told)


class Failing(Node):
    """A site whose half breaks, with a value of its records in the error."""

    error: Exception

    def answer(self, request: Request) -> Answer:
        if request.kind == "update":
            raise self.error
        return super().answer(request)


# What a user sees, what an engine says, what Python raises, and what a damaged file of the site's own is.
FAILURES = (UserError, ClientFailure, RuntimeError, MemoryError, RecursionError, AssertionError, OSError, BadMessage)


@pytest.mark.parametrize("share_errors", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
def test_why_a_site_cannot_go_on_is_told_only_in_a_simulation(
    failure: type[Exception], share_errors: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(configured(SMALL_METHODS[0]), tmp_path)
    broken = Failing(world.terms, world.sites[1], tmp_path / "1", share_metrics=True)
    broken.error = failure("record 17 is 4.25")
    world.grid.nodes[world.number[1]] = make_app(lambda *_: broken, share_errors)
    flower = logging.getLogger("flwr")
    flower.addHandler(caplog.handler)

    def stop(kind: str, text: str) -> None:
        assert kind == ("user" if failure is UserError else "client")
        raise ClientFailure(text)

    world.strategy._failed = stop
    if share_errors:
        with pytest.raises(ClientFailure, match=r"record 17 is 4\.25"):
            world.strategy.run_rounds(world.grid)
    else:
        world.strategy.run_rounds(world.grid)
        assert [record.turns[1].rejected for record in world.rounds] == [
            "it refuses: it cannot go on; its log says why"
        ] * (ROUNDS + 1)
        assert "17" not in "".join(world.told)
    flower.removeHandler(caplog.handler)
    assert "record 17 is 4.25" in caplog.text  # at home


def test_a_site_that_cannot_be_found_says_no_more(tmp_path: Path) -> None:
    def missing(context: Context, question: Message) -> Node:
        raise FileNotFoundError("/home/anna/records.npz")

    world = World(configured(SMALL_METHODS[0]), tmp_path)
    world.grid.nodes = {1: make_app(missing)}
    world.strategy.attendance.greet(world.grid, 1.0)
    assert world.told == ["node 1 does not take part: it refuses: it cannot go on; its log says why"]


def test_what_the_server_asked_wrongly_is_told(tmp_path: Path) -> None:
    world = World(configured(SMALL_METHODS[0]), tmp_path)
    request = Message(packed(OurMessage(), {"round": 1.5}), dst_node_id=1000, message_type="train")
    world.grid.push_messages([request])
    [reply] = world.grid.pull_messages([request.metadata.message_id])
    with pytest.raises(BadMessage, match="a request needs 'round'"):
        facts_of(reply)


def test_a_round_that_too_few_answer_is_held_again_and_then_given_up(tmp_path: Path) -> None:
    lost: Spoil = lambda reply: None  # noqa: E731
    world = World(configured(SMALL_METHODS[0]), tmp_path, dict.fromkeys(range(3), lost), quorum=2)
    with pytest.raises(UserError, match=f"fewer than 2 good replies {MOST_FAILURES} times in a row"):
        world.strategy.run_rounds(world.grid)
    assert world.strategy.server.round_number == -1
    world.grid.spoils.clear()
    world.strategy.server.failures = 0
    world.strategy.run_rounds(world.grid)  # what the sites had done already, they do not do again
    assert [record.number for record in world.rounds] == list(range(ROUNDS + 1))


def test_a_site_that_is_away_for_a_round_comes_back(tmp_path: Path) -> None:
    world = World(configured(SMALL_METHODS[0]), tmp_path)
    strategy, grid = world.strategy, world.grid
    away = world.number[0]

    def leave(record: Round) -> None:
        world.rounds.append(record)
        if record.number == 0:
            grid.nodes.pop(away)
        else:
            grid.nodes[away + 5] = world.app(world.sites[0])  # restarted: another number, the state from disk

    strategy._finished = leave
    strategy.run_rounds(grid)
    assert [sorted(record.turns) for record in world.rounds] == [[0, 1, 2], [1, 2], [0, 1, 2]]
    assert any("is not there" in text for text in world.told)


def test_a_server_that_was_stopped_goes_on_and_nothing_is_done_twice(tmp_path: Path) -> None:
    config = configured(SMALL_METHODS[0])
    straight = World(config, tmp_path / "straight")
    straight.strategy.run_rounds(straight.grid)

    world = World(config, tmp_path / "stopped")
    (tmp_path / "checkpoint").mkdir()

    class Killed(Exception):
        pass

    def stop(record: Round) -> None:
        if record.number == 1:
            raise Killed  # after the sites have done round 1, before the server has saved it
        world.strategy.server.save(tmp_path / "checkpoint")

    world.strategy._finished = stop
    with pytest.raises(Killed):
        world.strategy.run_rounds(world.grid)
    metrics = [path.read_text() for path in sorted((tmp_path / "stopped").glob("*/runs/*/metrics.jsonl"))]
    world.strategy = world.new_strategy()
    world.strategy.server.load(tmp_path / "checkpoint", 0)
    world.strategy.run_rounds(world.grid)
    assert [record.number for record in world.rounds] == [1, 2]
    ours, theirs = (w.strategy.server.state.tensors() for w in (world, straight))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    again = [path.read_text() for path in sorted((tmp_path / "stopped").glob("*/runs/*/metrics.jsonl"))]
    updates = [[line for line in text.splitlines() if '"update"' in line] for text in metrics]
    assert [[line for line in text.splitlines() if '"update"' in line][:2] for text in again] == updates


class TestAttendance:
    def greeted(self, world: World) -> Attendance:
        world.strategy.attendance.greet(world.grid, 1.0)
        return world.strategy.attendance

    def test_every_site_is_found_by_its_name(self, tmp_path: Path) -> None:
        world = World(configured(SMALL_METHODS[0]), tmp_path)
        found = self.greeted(world)
        assert found.complete
        assert found.nodes == world.number
        assert found.missing == []

    def test_a_name_is_given_once(self, tmp_path: Path) -> None:
        world = World(configured(SMALL_METHODS[0]), tmp_path)
        world.grid.nodes[2000] = world.app(world.sites[0])
        assert self.greeted(world).nodes == world.number
        assert any("node 2000 does not take part" in text and "is there already" in text for text in world.told)

    def test_a_name_stays_with_its_key(self, tmp_path: Path) -> None:
        world = World(configured(SMALL_METHODS[0]), tmp_path)
        world.grid.keys = {number: b"key %d" % number for number in world.grid.nodes}
        assert self.greeted(world).complete
        taken = world.grid.nodes.pop(world.number[0])
        world.grid.nodes[7] = taken
        world.grid.keys[7] = b"somebody else's"
        assert self.greeted(world).missing == [world.terms.sites[0]]
        assert any("with another key than before" in text for text in world.told)
        world.grid.keys[7] = b"key %d" % world.number[0]
        assert not self.greeted(world).missing

    def test_strangers_and_other_terms_are_refused(self, tmp_path: Path) -> None:
        world = World(configured(SMALL_METHODS[0]), tmp_path)
        other = World(configured(SMALL_METHODS[0], "rounds=5"), tmp_path / "other")
        world.grid.nodes = {1: other.app(other.sites[0]), 2: stranger()}
        found = self.greeted(world)
        assert not found.nodes
        assert any("it refuses: the server asks for rounds = 2, agreed was 5" in text for text in world.told)
        assert any("it calls itself 'nobody'" in text for text in world.told)

    def test_no_code_is_imported_because_a_node_names_it(self, tmp_path: Path) -> None:
        world = World(configured(SMALL_METHODS[0]), tmp_path)
        model = "tests.deployment.flower.trap:factory"
        facts = {"name": world.terms.sites[0], "terms": world.terms.digest, "model": {"name": model, "options": {}}}
        world.grid.nodes = {1: stranger(**facts)}
        found = self.greeted(world)
        assert found.nodes == {0: 1}
        roster = replace(roster_of(world.sites), models=(found.models[0],) * 3)
        with pytest.raises(UserError, match=r"server\.toml does not name"):
            Server(FedAvg(), roster)
        assert "tests.deployment.flower.trap" not in sys.modules
        trusting = Attendance(world.terms, world.told.append, [model])
        trusting.greet(world.grid, 1.0)
        assert trusting.models[0].name == model

    def test_what_nodes_say_is_printed_on_one_line(self, tmp_path: Path) -> None:
        world = World(configured(SMALL_METHODS[0]), tmp_path)
        world.grid.nodes = {1: stranger(refused="x\n\x1b[31mfedbnn: finished\n" + "y" * 10_000)}
        self.greeted(world)
        [text] = world.told
        assert "\n" not in text
        assert "\x1b" not in text
        assert len(text) < 600


def stranger(**facts: Any) -> ClientApp:
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return Message(packed(OurMessage(), facts or {"name": "nobody"}), reply_to=message)

    return app
