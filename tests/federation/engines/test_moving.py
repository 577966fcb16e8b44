"""Clients move between workers so that those who take part are spread evenly; results are the same bits."""

from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.devices import CPU
from fedbnn.base.errors import UserError
from fedbnn.federation.engines import InProcess, WorkerPool
from fedbnn.federation.engines.lasting import LastingStates
from fedbnn.federation.engines.pool import balanced, evened
from fedbnn.federation.engines.states import read_state, state_file
from fedbnn.federation.loop import Federation
from fedbnn.methods import FedAvg, FedMD
from fedbnn.methods.point import Point
from tests.federation_sample import small_sites

COSTS = st.dictionaries(st.integers(0, 40), st.integers(1, 20).map(float), max_size=30)


def loads(shares: list[list[int]], costs: dict[int, float], moves: dict[int, int]) -> list[float]:
    homes = {client: worker for worker, share in enumerate(shares) for client in share} | moves
    return [sum(costs[c] for c in costs if homes[c] == worker) for worker in range(len(shares))]


@given(costs=COSTS, workers=st.integers(1, 4), data=st.data())
def test_what_is_left_between_the_busiest_and_the_idlest_is_less_than_any_move_would_mend(costs, workers, data):
    shares = balanced(costs, workers)
    asked = {client: cost for client, cost in costs.items() if data.draw(st.booleans())}
    moves = evened(shares, asked)
    assert moves.keys() <= asked.keys()
    before, after = loads(shares, asked, {}), loads(shares, asked, moves)
    assert max(after) <= max(before)
    homes = {client: worker for worker, share in enumerate(shares) for client in share} | moves
    busiest = after.index(max(after))
    assert all(2 * asked[c] > max(after) - min(after) for c in asked if homes[c] == busiest)


@given(costs=COSTS, workers=st.integers(1, 4))
def test_nobody_moves_when_everybody_is_asked(costs, workers):
    assert evened(balanced(costs, workers), costs) == {}


def test_equal_clients_are_halved():
    shares = [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert evened(shares, dict.fromkeys([0, 2, 4, 6, 1], 1.0)) == {6: 1}
    assert evened(shares, dict.fromkeys([0, 2, 4, 6], 1.0)) == {6: 1, 4: 1}


def test_a_state_whose_file_is_put_into_the_folder_is_had(tmp_path: Path):
    folders = [tmp_path / "here", tmp_path / "there"]
    here, there = (LastingStates(Point, 1, folder, CPU, request=1) for folder in folders)
    for client in (0, 1):
        here[client] = Point(torch.full((3,), float(client)))
    here.settle()
    for client in (0, 1):  # of which one is in memory, too
        del here[client]
        state_file(folders[0], client).replace(state_file(folders[1], client))
        there.take(client)
        assert torch.equal(there[client].tensors()["weights"], torch.full((3,), float(client)))
    assert list(here) == []
    assert list(there) == [0, 1]
    state_file(folders[1], 0).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        there[0]


@pytest.mark.parametrize("method", [FedAvg(), FedMD(digest_steps=2)], ids=["fedavg", "fedmd"])
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_results_do_not_depend_on_where_clients_have_moved(method, killed, tmp_path: Path):
    """A share of the clients each round, a checkpoint, and predictions: as in one process, bit for bit.

    Also where workers are killed after clients have moved: those who take over have the clients as they are now.
    """
    outcomes = []
    pool = WorkerPool(2)
    for engine in (InProcess(), pool):
        folder = tmp_path / type(engine).__name__
        folder.mkdir()
        with closing(Federation(method, small_sites(8, models=("mlp",)), participation=0.25, engine=engine)) as held:
            homes = pool._shares
            held.run(3)
            if killed and engine is pool:
                for worker in pool._workers:
                    worker.process.kill()
            held.save(folder)
            held.load(folder, 3)
            rounds = held.run(5)
            inputs = held.sites[0].client.alignment[:3]
            answers = [held.predict(client, inputs).probs for client in range(8)]
            held.save(folder)
        scores = [{c: {v: e.scores for v, e in one.items()} for c, one in r.scores.items()} for r in rounds]
        outcomes.append((scores, answers, [read_state(state_file(folder, client)) for client in range(8)]))
    assert pool._shares != homes, "nobody has moved: nothing was tried"
    (scores, answers, states), (others, theirs, moved) = outcomes
    assert scores == others
    assert all(torch.equal(one, other) for one, other in zip(answers, theirs, strict=True))
    for one, other in zip(states, moved, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
