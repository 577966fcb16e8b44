from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.engines import InProcess, Reply
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.methods import FedBNN, FedMD, Local
from tests.federation_sample import small_sites


class Tampered(InProcess):
    """An engine in which client 1 sends something else than it should."""

    def __init__(self, bad: Message) -> None:
        super().__init__()
        self.bad = bad

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        for client, reply in super().update(round_number, messages):
            yield client, Reply(self.bad if client == 1 else reply.message, reply.info, reply.seconds)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Message({"phi": torch.full((30, 10), float("nan"))}), "not finite"),
        (Message({"phi": torch.zeros(31, 10)}), "shape"),
        (Message({"phi": torch.zeros(30, 10).double()}), "float64"),
        (Message({"psi": torch.zeros(30, 10)}), "agreed were"),
        (Message(), "agreed were"),
    ],
)
def test_a_bad_reply_stays_outside_and_the_round_goes_on(bad: Message, why: str) -> None:
    sites = small_sites(3, models=("mlp",))
    federation = Federation(FedMD(digest_steps=1, consensus="mean_logits"), sites, engine=Tampered(bad))
    record = federation.step()
    assert why in record.turns[1].rejected
    assert not record.turns[0].rejected
    honest = Federation(FedMD(digest_steps=1, consensus="mean_logits"), sites)
    honest.step()
    server, reference = federation.server.tensors(), honest.server.tensors()
    assert server["received"].tolist() == [True, False, True]
    torch.testing.assert_close(server["phi_bar"], reference["phi"][[0, 2]].mean(0))


def test_a_round_in_which_nobody_is_let_in_keeps_the_consensus() -> None:
    sites = small_sites(2, models=("mlp",))
    federation = Federation(FedMD(digest_steps=1, consensus="mean_logits"), sites)
    federation.step()
    before = federation.server.tensors()
    after = federation.method.server_update(federation.server, {}, federation.roster, Stream((0,))).tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_if_nobody_is_let_in_from_the_start_there_is_no_consensus() -> None:
    method = FedBNN()
    federation = Federation(method, small_sites(2, models=("mlp",)))
    state = method.server_update(federation.server, {}, federation.roster, Stream((0,)))  # type: ignore[arg-type]
    assert method.broadcast(state, 0).arrays == {}


def test_participation_is_a_share_drawn_anew_each_round_and_all_in_the_warm_up() -> None:
    federation = Federation(Local(), small_sites(10, models=("mlp",)), participation=0.25)
    assert federation.participants(0) == list(range(10))
    drawn = [federation.participants(r) for r in range(1, 40)]
    assert {len(d) for d in drawn} == {3}
    assert all(len(set(d)) == 3 for d in drawn)
    assert {c for d in drawn for c in d} == set(range(10))
    assert drawn == [federation.participants(r) for r in range(1, 40)]


def test_traffic_is_what_the_messages_hold() -> None:
    federation = Federation(FedMD(digest_steps=1), small_sites(3, models=("mlp",)))
    warm_up, first = federation.run(1)
    assert {(t.bytes_up, t.bytes_down) for t in warm_up.turns.values()} == {(30 * 10 * 4, 0)}
    assert {(t.bytes_up, t.bytes_down) for t in first.turns.values()} == {(30 * 10 * 4, 30 * 10 * 4)}


def test_listener_hears_of_every_client() -> None:
    heard: list[tuple[Any, ...]] = []
    federation = Federation(Local(), small_sites(3, models=("mlp",)))
    federation.step(listener=lambda *event: heard.append(event))
    assert sorted(heard) == sorted([(a, 0, c) for a in ("update", "evaluate") for c in range(3)])


def test_a_state_of_another_version_is_told_in_one_line(tmp_path: Path) -> None:
    sites = small_sites(2, models=("mlp",))
    federation = Federation(FedMD(digest_steps=1), sites)
    federation.run(0)
    federation.save(tmp_path)
    for file in sorted(tmp_path.iterdir()):
        kept = load_file(file)
        save_file({**kept, "heard": torch.zeros(1)}, file)
        with pytest.raises(UserError, match="begun by another version") as caught:
            Federation(FedMD(digest_steps=1), sites).load(tmp_path, 0)
        assert "heard" in str(caught.value)
        assert "\n" not in str(caught.value)
        save_file(kept, file)
    Federation(FedMD(digest_steps=1), sites).load(tmp_path, 0)


def test_a_round_keeps_one_core_busy_beside_its_workers() -> None:
    """Threads that PyTorch starts for checks of replies would wait for more on the cores of workers."""
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        federation = Federation(Local(), small_sites(2, models=("mlp",)))
        federation.step(listener=lambda *_: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2, "a user's own setting comes back"
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
