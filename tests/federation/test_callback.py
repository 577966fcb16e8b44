"""Callbacks hear each round, have no part in it, and may end it; short names for what comes back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedbnn
from fedbnn.federation.callback import Callback
from fedbnn.federation.loop import Federation, Round
from fedbnn.federation.message import Message
from fedbnn.methods import Local
from tests.federation_sample import small_sites


class Told(Callback):
    """Writes down what it hears, and asks for an end after a round."""

    def __init__(self, last: int = 99) -> None:
        self.heard: list[Any] = []
        self.last = last

    def client_done(self, activity: str, round_number: int, client: int) -> None:
        self.heard.append((activity, round_number, client))

    def round_done(self, record: Round) -> None:
        self.heard.append(record.number)

    def stop(self) -> str:
        return "enough" if self.heard[-1] == self.last else ""


def federation(method: fedbnn.Method[Any, Any] | None = None) -> Federation:
    return Federation(method or Local(), small_sites(clients=2, models=("mlp",)))


def scores(records: list[Round]) -> list[Mapping[int, dict[str, float]]]:
    return [{client: one["personal"].scores for client, one in record.scores.items()} for record in records]


def test_callbacks_hear_everything_in_order_and_change_nothing() -> None:
    one, other = Told(), Told()
    watched = federation().run(1, [one, other])
    turns = [
        (activity, number, client) for number in (0, 1) for activity in ("update", "evaluate") for client in (0, 1)
    ]
    assert one.heard == other.heard == [*turns[:4], 0, *turns[4:], 1]
    assert scores(watched) == scores(federation().run(1))


def test_the_first_that_asks_for_an_end_gets_it_and_run_goes_on_when_called_again() -> None:
    running = federation()
    assert [record.number for record in running.run(9, callbacks=(Told(), Told(last=1)))] == [0, 1]
    assert [record.number for record in running.run(2, Told())] == [2]


def test_names_are_short_and_spill_no_tensors() -> None:
    running = federation()
    assert repr(running) == "<Federation: local, 2 clients, InProcess, not begun>"
    [record] = running.run(0)
    own = sum(one["personal"].scores["own_class_accuracy"] for one in record.scores.values()) / 2
    assert repr(record) == f"<Round 0: 2 turns, own-class accuracy {own:.1%}, {record.seconds:.1f} s>"
    assert repr(running) == "<Federation: local, 2 clients, InProcess, after the warm-up>"
    site = running.sites[0]
    assert repr(site.client.train) == "<12 records of shape (1, 8, 8)>"
    assert repr(Message({"phi": site.own})) == f"<Message: phi ({len(site.own)},)>"
    for one in (site, record.scores[0], running.roster):
        assert "tensor(" not in repr(one)
        assert "array(" not in repr(one)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rounds": -1}, "rounds = -1: the number of the last round, a whole number from 0 up"),
        ({"rounds": "3"}, "rounds = '3':"),
        ({"rounds": True}, "rounds = True:"),
        ({"rounds": 1, "callbacks": print}, "callbacks: 'builtin_function_or_method' is no fedbnn.Observer; give one"),
        ({"rounds": 1, "callbacks": [Told(), "x"]}, "callbacks: 'str' is no fedbnn.Observer"),
        ({"rounds": 1, "callbacks": Told}, "callbacks: 'Told' is no fedbnn.Observer; give an instance, not the class"),
        ({"rounds": 1, "callbacks": fedbnn.EarlyStopping()}, "early stopping: the sites are scored on test records"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_argument(arguments: dict[str, Any], words: str) -> None:
    running = federation()
    with pytest.raises(fedbnn.UserError) as error:
        running.run(**arguments)
    assert str(error.value).startswith(words)
    assert running.round_number == -1


def test_checkpoints_of_a_federation_used_piece_by_piece(tmp_path: Path) -> None:
    whole = federation(fedbnn.FedAvg()).run(3)
    first = federation(fedbnn.FedAvg())
    saved = fedbnn.Checkpointing(first, str(tmp_path / "states"), every=2)
    assert saved.resume() == -1
    first.run(3, saved)
    assert sorted(one.name for one in (tmp_path / "states").glob("round-*")) == ["round-00000", "round-00002"]
    second = federation(fedbnn.FedAvg())
    assert fedbnn.Checkpointing(second, tmp_path / "states").resume() == 2
    [last] = second.run(3)
    variants = next(iter(whole[-1].scores.values()))
    for client in (0, 1):
        for variant in variants:
            assert last.scores[client][variant].scores == whole[-1].scores[client][variant].scores
    other = federation(fedbnn.FedProx(mu=0.5))
    with pytest.raises(fedbnn.UserError, match=r"states of another federation \(method was 'fedavg', is 'fedprox'"):
        fedbnn.Checkpointing(other, tmp_path / "states").resume()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("mine")
    with pytest.raises(fedbnn.UserError, match="is not empty and holds no states"):
        other.run(0, fedbnn.Checkpointing(other, tmp_path / "full"))
    with pytest.raises(fedbnn.UserError, match="every = 0: a whole number from 1 up"):
        fedbnn.Checkpointing(other, tmp_path, every=0)
    with pytest.raises(fedbnn.UserError, match=r"federation: a 'FedAvg' is no fedbnn\.Federation"):
        fedbnn.Checkpointing(fedbnn.FedAvg(), tmp_path)  # type: ignore[arg-type]
