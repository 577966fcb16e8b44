"""More clients than memory: states in files change nothing, whatever the bound."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.federation.engines import InProcess, WorkerPool
from fedbnn.federation.engines.states import ClientStates, read_state, state_file
from fedbnn.federation.loop import Federation
from fedbnn.federation.method import State
from fedbnn.methods import FedAvg, FedBNN
from tests.federation_sample import small_sites


@dataclass(frozen=True)
class Numbers(State):
    single: Tensor
    double: Tensor | None = None


def numbers(value: float) -> Numbers:
    return Numbers(torch.full((3,), value), torch.full((2, 2), value, dtype=torch.float64) if value > 3 else None)


def same(one: State, other: State) -> bool:
    mine, theirs = one.tensors(), other.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@given(
    most=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sampled_from(["set", "get", "delete"]), st.integers(0, 6), st.integers(0, 9)), max_size=40
    ),
)
def test_it_is_a_dictionary_whatever_the_bound(most, steps):
    plain: dict[int, Numbers] = {}
    states = ClientStates(Numbers, most)
    for step, client, value in steps:
        if step == "set":
            plain[client] = states[client] = numbers(float(value))
        elif client not in plain:
            assert client not in states
            with pytest.raises(KeyError):
                states[client]
        elif step == "get":
            assert same(states[client], plain[client])
        else:
            del plain[client], states[client]
        assert list(states) == sorted(plain)
        assert len(states) == len(plain)
        assert len(states._held) <= most


def test_all_are_saved_those_in_files_too(tmp_path: Path):
    states = ClientStates(Numbers, 2, tmp_path / "left")
    for client in range(5):
        states[client] = numbers(float(client))
    assert sorted(path.name for path in (tmp_path / "left").iterdir()) == [
        f"client-000{n}.safetensors" for n in range(3)
    ]
    (tmp_path / "saved").mkdir()
    states.save(tmp_path / "saved")
    for client in range(5):
        assert same(Numbers.from_tensors(read_state(state_file(tmp_path / "saved", client))), numbers(float(client)))


def test_a_file_that_was_destroyed_is_told(tmp_path: Path):
    states = ClientStates(Numbers, 1, tmp_path)
    states[0], states[1] = numbers(1.0), numbers(2.0)
    state_file(tmp_path, 0).write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match=r"client-0000\.safetensors cannot be read"):
        states[0]


@pytest.fixture(scope="module")
def one_client_each():
    with closing(WorkerPool(2, in_memory=1)) as pool:
        yield pool


@pytest.mark.parametrize("method", [FedAvg(), FedBNN(prior_steps=2)], ids=["fedavg", "fedbnn"])
def test_results_do_not_depend_on_how_many_clients_are_in_memory(method, one_client_each, tmp_path: Path):
    """One at a time, all at once, and two workers with one each: the same bits, also after a checkpoint."""
    models = ("mlp",) if isinstance(method, FedAvg) else ("mlp", "cnn2")
    outcomes = []
    for name, engine in {
        "all": InProcess(),
        "one": InProcess(in_memory=1),
        "workers": one_client_each,
    }.items():
        federation = Federation(method, small_sites(4, models=models), engine=engine)
        federation.run(1)
        (tmp_path / name).mkdir()
        federation.save(tmp_path / name)
        federation.load(tmp_path / name, 1)
        federation.run(2)
        scores = {k: {v: e.scores for v, e in one.items()} for k, one in federation.evaluate().items()}
        (tmp_path / name / "end").mkdir()
        federation.save(tmp_path / name / "end")
        outcomes.append((scores, [read_state(state_file(tmp_path / name / "end", client)) for client in range(4)]))
    for scores, states in outcomes[1:]:
        assert scores == outcomes[0][0]
        for mine, theirs in zip(states, outcomes[0][1], strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
