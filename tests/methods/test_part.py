"""A part of the alignment set a round: who is told and asked what, what stays, and what is refused."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.engines import Engine, InProcess, WorkerPool
from fedbnn.federation.loop import Federation, Round, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.server import Server
from fedbnn.methods import FedBNN, FedBNNPaper, FedMD
from fedbnn.methods.mechanisms.mechanism import Uploads
from fedbnn.methods.part import dispute, most_disputed, part_at, random_part
from fedbnn.privacy import PrivacySettings
from tests.federation_sample import small_sites

SITES = small_sites(4, models=("mlp",))
POINTS, CLASSES, PART = len(SITES[0].client.alignment), SITES[0].client.classes, 7
METHODS = (
    FedMD(digest_steps=3, consensus="mean_logits"),
    FedBNNPaper(prior_steps=3, mc_samples=2),
    FedBNN(prior_steps=3, mc_samples=2, head=False),
)
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def held(method: Any, engine: Engine | None = None, rounds: int = 2, **more: Any) -> tuple[list[Round], Uploads]:
    with closing(Federation(method, SITES, engine=engine, **more)) as federation:
        found = federation.run(rounds)
        state = federation.server
    assert isinstance(state, Uploads)
    return found, state


def same(one: Uploads, other: Uploads) -> bool:
    mine, theirs = one.tensors(), other.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def scores(rounds: list[Round]) -> list[Any]:
    return [{c: {v: e.scores for v, e in one.items()} for c, one in held.scores.items()} for held in rounds]


def test_dispute_is_the_variance_of_what_clients_say() -> None:
    probs = torch.tensor([[[0.9, 0.1], [0.5, 0.5]], [[0.1, 0.9], [0.5, 0.5]]])
    expected = torch.tensor([2 * 0.4**2, 0.0], dtype=torch.float64)
    torch.testing.assert_close(dispute(probs, logits=False, regression=False), expected, atol=1e-7, rtol=0)
    # Logits count by their probabilities: what is added to all of them says nothing.
    shifted = probs.log() + torch.tensor([5.0, -2.0])[:, None, None]
    torch.testing.assert_close(dispute(shifted, logits=True, regression=False), expected, atol=1e-6, rtol=0)
    # Of Gaussians the means count, and not the log variances beside them.
    gaussians = torch.tensor([[[1.0, 9.0]], [[4.0, -9.0]]])
    torch.testing.assert_close(dispute(gaussians, logits=True, regression=True), torch.tensor([2.25]).double())


def test_the_most_disputed_points_in_order_and_of_equals_the_first() -> None:
    assert most_disputed(torch.tensor([1.0, 3.0, 2.0, 3.0, 1.0]), 2).tolist() == [1, 3]
    assert most_disputed(torch.tensor([1.0, 3.0, 2.0, 3.0, 1.0]), 4).tolist() == [0, 1, 2, 3]


def test_random_parts_follow_from_their_stream_and_reach_every_point() -> None:
    parts = [random_part(20, 5, Stream((0, "server", number))) for number in range(40)]
    assert torch.equal(parts[0], random_part(20, 5, Stream((0, "server", 0))))
    assert all(len(set(part.tolist())) == 5 and part.tolist() == sorted(part.tolist()) for part in parts)
    assert set(torch.cat(parts).tolist()) == set(range(20))


@every_method
def test_a_message_about_all_points_does_what_one_without_a_list_does(method: Any) -> None:
    """The client's half: the same state and the same reply, bit for bit."""
    client, everything = SITES[0].client, torch.arange(POINTS)
    parted = replace(method, points_per_round=PART)
    phi_bar = torch.randn(POINTS, CLASSES, generator=torch.Generator().manual_seed(0))
    plain = Message({"phi_bar": phi_bar})
    listed = Message({"phi_bar": phi_bar, "points": everything, "asked": everything})
    one, other = (
        chosen.client_update(chosen.client_init(client), client, message, 1, Stream((0, "update", 1, 0)))
        for chosen, message in ((method, plain), (parted, listed))
    )
    assert torch.equal(one.message.arrays["phi"], other.message.arrays["phi"])
    mine, theirs = one.state.tensors(), other.state.tensors()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@every_method
@pytest.mark.parametrize("count", [POINTS, POINTS + 1])
def test_all_points_are_as_without_the_setting(method: Any, count: int) -> None:
    plain, whole = held(method, rounds=1), held(replace(method, points_per_round=count), rounds=1)
    assert scores(plain[0]) == scores(whole[0])
    assert same(plain[1], whole[1])


@every_method
@pytest.mark.parametrize("points", ["random", "disputed"])
def test_messages_are_of_the_part_alone(method: Any, points: Any) -> None:
    rounds, state = held(replace(method, points_per_round=PART, points=points))
    for turn in rounds[0].turns.values():
        assert (turn.bytes_up, turn.bytes_down) == (POINTS * CLASSES * 4, 0)
    for one in rounds[1:]:
        for turn in one.turns.values():
            assert turn.bytes_up == PART * CLASSES * 4
            assert turn.bytes_down == PART * (CLASSES * 4 + 2 * 8)  # with both lists
    assert state.told is not None
    assert state.asked is not None
    assert (len(state.told), len(state.asked)) == (PART, PART)


@pytest.mark.parametrize("points", ["random", "disputed"])
def test_what_was_asked_is_told_next_and_the_rest_stays(points: Any) -> None:
    method = replace(METHODS[0], points_per_round=PART, points=points)
    with closing(Federation(method, SITES)) as federation:
        federation.run(0)
        for _ in range(3):
            before = federation.server
            federation.step(evaluate=False)
            after = federation.server
            assert isinstance(before, Uploads)
            assert isinstance(after, Uploads)
            assert before.asked is not None
            assert after.told is not None
            assert torch.equal(after.told, before.asked)
            unasked = torch.ones(POINTS, dtype=torch.bool)
            unasked[before.asked] = False
            assert before.phi_bar is not None
            assert after.phi_bar is not None
            assert torch.equal(after.phi_bar[unasked], before.phi_bar[unasked])
            assert not torch.equal(after.phi_bar[before.asked], before.phi_bar[before.asked])
            message = method.broadcast(after, 0)
            assert torch.equal(message.arrays["phi_bar"], after.phi_bar[after.told])
            assert message.arrays["phi_bar"] is method.broadcast(after, 1).arrays["phi_bar"]  # sent once
            if points == "disputed":
                apart = after.phi.softmax(2).double().var(0, correction=0).sum(1)
                assert after.asked is not None
                rest = torch.ones(POINTS, dtype=torch.bool)
                rest[after.asked] = False
                assert apart[after.asked].min() >= apart[rest].max() - 1e-9


def test_who_has_not_answered_yet_is_asked_about_everything() -> None:
    method = replace(METHODS[0], points_per_round=PART)
    server = Server(method, roster_of(SITES))

    def reply(points: int) -> Message:
        return Message({"phi": torch.full((points, CLASSES), 2.0)})

    server.take_in({client: reply(POINTS) for client in (0, 1, 2)})
    assert server.refusal(0, reply(PART)) == ""
    assert "shape" in server.refusal(0, reply(POINTS))
    assert server.refusal(3, reply(POINTS)) == ""
    assert "shape" in server.refusal(3, reply(PART))
    server.take_in({0: reply(PART), 3: reply(POINTS)})
    assert isinstance(server.state, Uploads)
    assert torch.equal(server.state.phi, torch.full((4, POINTS, CLASSES), 2.0))
    assert server.refusal(3, reply(PART)) == ""


@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: method.name)
def test_engines_and_a_resumed_run_agree_bit_for_bit(method: Any, tmp_path: Path) -> None:
    method = replace(method, points_per_round=PART, points="disputed")
    rounds, state = held(method, InProcess(), 3, participation=0.5)
    with closing(Federation(method, SITES, participation=0.5, engine=WorkerPool(2))) as federation:
        first = federation.run(2)
        federation.save(tmp_path)
    with closing(Federation(method, SITES, participation=0.5)) as federation:
        federation.load(tmp_path, 2)
        last = federation.run(3)
        assert isinstance(federation.server, Uploads)
        assert same(state, federation.server)
    assert scores(first + last) == scores(rounds)


HOSTILE: dict[str, Tensor] = {
    "beyond the end": torch.tensor([0, POINTS]),
    "before the start": torch.tensor([-1, 3]),
    "twice": torch.tensor([2, 2, 5]),
    "not in order": torch.tensor([5, 2]),
    "nothing": torch.zeros(0, dtype=torch.int64),
    "more than there are": torch.arange(POINTS + 1),
    "no whole numbers": torch.tensor([0.0, 1.0]),
    "a table": torch.zeros(1, 2, dtype=torch.int64),
    "one number": torch.tensor(3),
}


@pytest.mark.parametrize("name", ["points", "asked"])
@pytest.mark.parametrize("points", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_list_is_refused_before_anything_is_learned(name: str, points: Tensor) -> None:
    client, honest = SITES[0].client, torch.tensor([0, 1])
    arrays = {"phi_bar": torch.zeros(points.numel(), CLASSES), "points": honest, "asked": honest, name: points}
    with pytest.raises(UserError, match=rf"'{name}' of a message"):
        part_at(client, Message(arrays), name)
    if name == "points" or points.numel() == 2:
        method = replace(METHODS[0], points_per_round=PART)
        with pytest.raises(UserError, match="of a message"):
            method.client_update(method.client_init(client), client, Message(arrays), 1, Stream((0,)))


@pytest.mark.parametrize("arrays", [{}, {"phi_bar": torch.zeros(3, CLASSES)}])
def test_a_consensus_on_other_points_than_are_named_is_refused(arrays: dict[str, Tensor]) -> None:
    with pytest.raises(UserError, match="names 2 alignment points and has no consensus on as many"):
        part_at(SITES[0].client, Message({**arrays, "points": torch.tensor([0, 1])}), "points")


def test_without_the_setting_lists_have_no_part_in_anything() -> None:
    client = SITES[0].client
    assert METHODS[0].told(client, Message({"points": torch.tensor([0])})) is client
    assert METHODS[0].asked(client, Message({"asked": torch.tensor([0])})) is client


def test_heads_and_private_mechanisms_refuse_a_part() -> None:
    with pytest.raises(
        UserError, match=r"methods\.fedbnn\.points_per_round = 7: what a head holds .* needs that at all"
    ):
        FedBNN(points_per_round=PART).server_init(roster_of(SITES))
    private = roster_of(small_sites(1, models=("mlp",), privacy=PrivacySettings("dp_teacher")))
    with pytest.raises(UserError, match=r"points_per_round = 7: noise of privacy\.mechanism = 'dp_teacher' is planned"):
        FedMD(points_per_round=PART).server_init(private)
    site = small_sites(1, models=("mlp",), privacy=PrivacySettings("dp_teacher"))[0]
    with pytest.raises(UserError, match=r"points_per_round = 7: noise of privacy\.mechanism"):
        FedMD(points_per_round=PART).check_client(site.client)
