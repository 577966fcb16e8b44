"""A client whose replies are refused again and again is set aside, and the others go on as if it had never been."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.federation.engines import InProcess, Reply
from fedbnn.federation.loop import Federation, Round
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.methods import FedAvg, FedBNN, FedBNNPaper, FedMD
from fedbnn.runs.config import load_config
from fedbnn.runs.results import metric_lines
from tests.federation_sample import described, models_for, small_sites
from tests.runs.run_sample import TINY

CLIENTS, HOSTILE = 4, 3
METHODS: tuple[Method[Any, Any], ...] = (
    FedBNN(prior_steps=2, mc_samples=2, network_every=2),
    FedBNNPaper(prior_steps=2, mc_samples=2),
    FedMD(digest_steps=2),
    FedAvg(),
)

Lie = Callable[[int, Message], Message]


def huge(round_number: int, message: Message) -> Message:
    """Finite numbers that are as large as single precision has them."""
    return Message({name: torch.full_like(array, 1e38) for name, array in message.arrays.items()})


class Lying(InProcess):
    """An engine in which one client sends what `lie` makes of its replies."""

    def __init__(self, lie: Lie = huge, client: int = HOSTILE) -> None:
        super().__init__()
        self.lie, self.client = lie, client

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        for client, reply in super().update(round_number, messages):
            sent = self.lie(round_number, reply.message) if client == self.client else reply.message
            yield client, Reply(sent, reply.info, reply.seconds)


def scores_of(record: Round) -> dict[int, Any]:
    return {
        client: {variant: one.to_dict() for variant, one in scores.items()}
        for client, scores in record.scores.items()
        if client != HOSTILE
    }


@pytest.mark.parametrize("method", METHODS, ids=described)
def test_honest_clients_fare_as_in_a_federation_without_the_liar(method: Method[Any, Any]) -> None:
    """Bit for bit, in every round: nothing of what it sends is ever used. Its name stays on the list: N is theirs."""
    sites = small_sites(CLIENTS, models=models_for(method))
    attacked = Federation(method, sites, engine=Lying())
    without = Federation(method, sites[:HOSTILE])
    assert all(site.client.clients == CLIENTS for site in sites[:HOSTILE])
    for number in range(5):
        found, expected = attacked.step(), without.step()
        assert scores_of(found) == scores_of(expected)
        assert list(found.set_aside) == ([HOSTILE] if number == 2 else [])
        assert (HOSTILE in found.turns) == (number <= 2)
        for client in range(HOSTILE):
            message = attacked.method.broadcast(attacked.server, client)
            for name, array in without.method.broadcast(without.server, client).arrays.items():
                assert torch.equal(message.arrays[name], array)


def test_one_good_reply_in_between_is_a_new_start() -> None:
    def mostly(round_number: int, message: Message) -> Message:
        return message if round_number % 3 == 2 else huge(round_number, message)

    federation = Federation(FedAvg(), small_sites(CLIENTS, models=("mlp",)), engine=Lying(mostly))
    assert [record.set_aside for record in federation.run(6)] == [[]] * 7


def test_what_it_said_before_it_lied_is_forgotten() -> None:
    def later(round_number: int, message: Message) -> Message:
        return message if round_number == 0 else huge(round_number, message)

    method = FedMD(digest_steps=1, consensus="mean_probabilities")
    federation = Federation(method, small_sites(CLIENTS, models=("mlp",)), engine=Lying(later))
    federation.run(2)
    assert federation.server.tensors()["received"].tolist() == [True] * 4
    assert federation.step().set_aside == [HOSTILE]
    federation.step()
    state = federation.server.tensors()
    assert state["received"].tolist() == [True, True, True, False]
    torch.testing.assert_close(state["phi_bar"], state["phi"][:HOSTILE].mean(0))


def test_a_stopped_run_remembers_who_lied(tmp_path: Path) -> None:
    sites = small_sites(CLIENTS, models=("mlp",))
    one = Federation(FedAvg(), sites, engine=Lying())
    one.run(1)
    one.save(tmp_path)
    other = Federation(FedAvg(), sites, engine=Lying())
    other.load(tmp_path, 1)
    assert other.step().set_aside == one.step().set_aside == [HOSTILE]


def test_a_reply_that_is_as_agreed_and_spoils_the_servers_numbers_is_left_out() -> None:
    """The server never sends what no client would take: here it adds up what came, and one gave far too much."""

    class Sum(FedAvg):
        name = "sum_of_weights"

        def server_update(self, state: Any, replies: Any, roster: Any, rng: Any) -> Any:
            joined = super().server_update(state, replies, roster, rng)
            return type(joined)(joined.weights * 1000)

    def large(round_number: int, message: Message) -> Message:
        return Message({**message.arrays, "weights": torch.full_like(message.arrays["weights"], 9e3)})

    federation = Federation(Sum(), small_sites(CLIENTS, models=("mlp",)), engine=Lying(large))
    record = federation.step(evaluate=False)
    assert record.turns[HOSTILE].rejected == "with it the server cannot go on"
    assert not any(record.turns[client].rejected for client in range(HOSTILE))
    assert bool((federation.server.tensors()["weights"].abs() < 1e6).all())


def test_where_everybody_lies_the_run_ends_with_a_line() -> None:
    class All(Lying):
        def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
            for client, reply in InProcess.update(self, round_number, messages):
                yield client, Reply(huge(round_number, reply.message), reply.info, reply.seconds)

    federation = Federation(FedAvg(), small_sites(2, models=("mlp",)), engine=All(), patience=1)
    assert federation.step(evaluate=False).set_aside == [0, 1]
    with pytest.raises(UserError, match="every client has been set aside"):
        federation.step()


def test_participants_are_drawn_among_those_that_are_left() -> None:
    federation = Federation(
        FedAvg(), small_sites(CLIENTS, models=("mlp",)), participation=0.75, patience=1, engine=Lying()
    )
    federation.step(evaluate=False)
    assert all(federation.participants(number) == [0, 1, 2] for number in range(1, 10))


def test_a_run_folder_tells_who_was_set_aside(tmp_path: Path) -> None:
    config = load_config(None, [*TINY, "method=fedavg", "partition.clients=3", "rounds=2", "patience=2"])
    result = fedbnn.run(config, tmp_path / "run", engine=Lying(client=1))
    name = result["per_client"]["name"][1]
    assert result["set_aside"] == [name]
    notes = (tmp_path / "run" / "notes.jsonl").read_text()
    assert f"round 1: client 1 ('{name}') is set aside for the rest of the run: 2 replies in a row" in notes
    assert f"Set aside, as replies were refused several times in a row: {name}." in (
        tmp_path / "run" / "report.html"
    ).read_text(encoding="utf-8")


def test_a_line_of_the_metrics_says_so() -> None:
    federation = Federation(FedAvg(), small_sites(CLIENTS, models=("mlp",)), engine=Lying(), patience=1)
    lines = metric_lines(federation.step(), [site.client.name for site in federation.sites])
    assert [line.get("set_aside", False) for line in lines] == [False, False, False, True]
