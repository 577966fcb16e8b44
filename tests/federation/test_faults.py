"""Clients fail as the rates say, the same ones on every engine, and a round goes on or is held again without them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.engines import InProcess, Reply, WorkerPool
from fedbnn.federation.faults import SILENT, Fault, FaultSettings, cut_short
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.methods import FedAvg, FedBNN
from fedbnn.runs.config import load_config
from tests.federation_sample import SMALL_METHODS, described, models_for, small_sites
from tests.runs.run_sample import TINY, stopped, timeless

CLIENTS = 4


class Planned(FaultSettings):
    """Faults by (round, how often it was asked before, client) instead of by chance."""

    plan: Mapping[tuple[int, int, int], Fault] = {}

    @classmethod
    def of(cls, plan: Mapping[tuple[int, int, int], Fault]) -> "Planned":
        planned = cls()
        object.__setattr__(planned, "plan", plan)
        return planned

    def drawn(self, seed: int, round_number: int, before: int, clients: Iterable[int]) -> dict[int, Fault]:
        found = {client: self.plan.get((round_number, before, client)) for client in clients}
        return {client: fault for client, fault in found.items() if fault is not None}


class Watched(InProcess):
    """Counts the turns of each client."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: Counter[int] = Counter()

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        self.turns.update(list(messages))
        yield from super().update(round_number, messages)

    def lose(self, round_number: int, messages: Mapping[int, Message]) -> None:
        self.turns.update(list(messages))
        super().lose(round_number, messages)

    def weights(self, client: int) -> torch.Tensor:
        found: torch.Tensor = self._host.states[client].tensors()["weights"]
        return found


def fedavg(faults: FaultSettings | None = None, **more: Any) -> tuple[Federation, Watched]:
    engine = Watched()
    return Federation(FedAvg(), small_sites(CLIENTS, models=("mlp",)), faults=faults, engine=engine, **more), engine


def test_rates_are_exact_and_exclude_each_other() -> None:
    faults = FaultSettings(dropout=0.1, straggler=0.2, crash=0.3, corrupt=0.15)
    drawn = Counter(faults.drawn(seed=1, round_number=2, before=0, clients=range(4000)).values())
    for fault, rate in faults.rates.items():
        assert abs(drawn[fault] / 4000 - rate) < 4 * (rate * (1 - rate) / 4000) ** 0.5


def test_who_fails_hangs_on_seed_round_try_and_client_alone() -> None:
    faults = FaultSettings(dropout=0.5)
    one = faults.drawn(1, 2, 0, range(100))
    assert faults.drawn(1, 2, 0, [7, 3]) == {client: one[client] for client in (7, 3) if client in one}
    assert len({tuple(faults.drawn(*where, range(100))) for where in ((1, 2, 0), (2, 2, 0), (1, 3, 0), (1, 2, 1))}) == 4
    assert set(FaultSettings(dropout=0.2).drawn(1, 2, 0, range(100))) < set(one)
    assert set(FaultSettings(dropout=1.0).drawn(1, 2, 0, range(100))) == set(range(100))
    assert FaultSettings().drawn(1, 2, 0, range(100)) == {}


def test_rates_are_shares_of_one_whole() -> None:
    with pytest.raises(UserError, match=r"faults: dropout, straggler, crash and corrupt .* add up to 1\.1"):
        load_config(None, ["faults.dropout=0.6", "faults.crash=0.5"])


@pytest.mark.parametrize("fault", ["dropout", "straggler", "crash", "corrupt"])
def test_what_befalls_a_client(fault: Fault) -> None:
    """Of four in the warm-up the last fails; what the server has is the mean of the others."""
    federation, engine = fedavg(Planned.of({(0, 0, 3): fault}))
    start = engine.weights(3).clone()
    record = federation.step(evaluate=False)
    whole, taken = fedavg()
    replies = dict(taken.update(0, whole._server.messages(range(CLIENTS))))

    mean = torch.stack([replies[client].message.arrays["weights"] for client in range(3)]).mean(0)
    torch.testing.assert_close(federation.server.tensors()["weights"], mean)
    for client in range(3):
        assert torch.equal(engine.weights(client), taken.weights(client))
    assert engine.turns[3] == (0 if fault == "dropout" else 1)
    kept = fault in ("straggler", "corrupt")
    assert torch.equal(engine.weights(3), taken.weights(3) if kept else start)
    assert not torch.equal(taken.weights(3), start)
    assert [bool(record.turns[client].rejected) for client in range(CLIENTS)] == [False, False, False, True]
    if fault == "corrupt":
        assert "has shape" in record.turns[3].rejected
        assert federation._server.refused == {3: 1}
    else:
        assert record.turns[3].rejected == SILENT
        assert federation._server.refused == {}


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_a_reply_that_was_cut_short_is_refused(method: Method[Any, Any]) -> None:
    sites = small_sites(2, models=models_for(method))
    federation = Federation(method, sites)
    [(client, reply)] = federation.engine.update(0, federation._server.messages([1]))
    assert not federation._server.refusal(client, reply.message)
    assert bool(federation._server.refusal(client, cut_short(reply.message))) == bool(reply.message.arrays)


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_rounds_that_nobody_answers_leave_the_server_as_it_is(method: Method[Any, Any]) -> None:
    sites = small_sites(2, models=models_for(method))
    federation = Federation(method, sites, faults=FaultSettings(dropout=1.0))
    before = federation.server.tensors()
    for number in range(2):
        assert federation.step(evaluate=False).number == number
    after = federation.server.tensors()
    if method.name != "dp_fedavg":  # whose server has noise of its own to add
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_round_that_too_few_answer_is_held_again_and_nobody_takes_two_turns() -> None:
    """Two of four fail in the first round at first, one of them once more: then all is as if nothing had happened."""
    plan: dict[tuple[int, int, int], Fault] = {
        (1, 0, 0): "straggler",
        (1, 0, 1): "crash",
        (1, 0, 2): "corrupt",
        (1, 1, 3): "dropout",
        (1, 1, 0): "crash",  # who has taken its turn dies before it can send the reply again
    }
    federation, engine = fedavg(Planned.of(plan), quorum=4)
    straight, expected = fedavg()
    records, others = federation.run(2), straight.run(2)
    assert [record.fell_short for record in records] == [0, 2, 0]
    assert engine.turns - expected.turns == Counter({1: 1})  # the turn that was lost
    for one, other in zip(records, others, strict=True):
        assert {c: (dict(t.info), t.rejected) for c, t in one.turns.items()} == {
            c: (dict(t.info), "") for c, t in other.turns.items()
        }
    assert torch.equal(federation.server.tensors()["weights"], straight.server.tensors()["weights"])
    assert all(torch.equal(engine.weights(client), expected.weights(client)) for client in range(CLIENTS))


def test_a_round_is_not_held_for_ever() -> None:
    federation, _ = fedavg(FaultSettings(dropout=1.0), quorum=2)
    with pytest.raises(UserError, match="round 0: fewer than 2 good replies 3 times in a row"):
        federation.step()
    assert federation.round_number == -1


def test_a_quorum_is_at_most_who_is_asked() -> None:
    federation, _ = fedavg(quorum=100, participation=0.5)
    assert [record.fell_short for record in federation.run(1)] == [0, 0]


def test_every_engine_has_the_same_faults() -> None:
    """Beside Flower's, in tests/deployment/flower/test_faulty.py."""
    method = FedBNN(prior_steps=2, mc_samples=2)
    faults = FaultSettings(dropout=0.15, straggler=0.15, crash=0.15, corrupt=0.15)
    sites = small_sites(5, models=("mlp",))
    outcomes = []
    for engine in (InProcess(), WorkerPool(1)):
        with closing(Federation(method, sites, seed=11, faults=faults, quorum=3, engine=engine)) as federation:
            rounds = federation.run(3)
            told = [{c: (dict(t.info), t.rejected) for c, t in r.turns.items()} for r in rounds]
            scores = [{c: s["personal"].to_dict() for c, s in r.scores.items()} for r in rounds]
            outcomes.append((told, scores, [r.fell_short for r in rounds], federation.server.tensors()))
    assert outcomes[0][:3] == outcomes[1][:3]
    assert all(torch.equal(array, outcomes[1][3][name]) for name, array in outcomes[0][3].items())
    assert outcomes[0][2] == [0, 0, 2, 1]
    assert SILENT in {reason for told in outcomes[0][0] for _, reason in told.values()}


def test_a_run_tells_what_was_dropped_and_goes_on_with_the_same_faults(tmp_path: Path) -> None:
    changes = [
        "method=fedavg",
        "partition.clients=4",
        "rounds=3",
        "faults.dropout=0.3",
        "faults.corrupt=0.2",
        "seed=11",
    ]
    config = load_config(None, [*TINY, *changes, "quorum=3"])
    result = fedbnn.run(config, tmp_path / "run")
    notes = (tmp_path / "run" / "notes.jsonl").read_text()
    assert result["dropped"] > 0
    assert "round 0 went on without 'client-" in notes or "round 1 went on without 'client-" in notes
    assert "was not let in: 'weights' has shape" in notes
    assert "held again" in notes
    assert f"Rounds went on without some replies, late, lost or refused: {result['dropped']} in all." in (
        tmp_path / "run" / "report.html"
    ).read_text(encoding="utf-8")
    stopped(config, tmp_path / "stopped", 1)
    assert timeless(fedbnn.run(config, tmp_path / "stopped", resume=True)) == timeless(result)


def test_real_sites_are_not_made_to_fail(tmp_path: Path) -> None:
    config = load_config(None, [*TINY, "method=fedavg", "faults.crash=0.1"])
    with pytest.raises(UserError, match="faults: they are for simulations"):
        write_federation(tmp_path / "federation", config)
