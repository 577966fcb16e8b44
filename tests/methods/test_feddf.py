"""FedDF: distillation of the ensemble into a student for every architecture."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, Numbers
from fedbnn.federation.parties import Roster
from fedbnn.methods import FedDF
from fedbnn.methods.feddf import Students, divergence
from fedbnn.models.bayes import logits_of
from tests.federation_sample import small_sites

RNG = Stream((0, "test"))
MIXED = small_sites(4, models=("mlp", "cnn2"))  # clients 0 and 2 with one, 1 and 3 with the other
ROSTER = roster_of(MIXED)
SIZES = tuple(site.client.network.size for site in MIXED)


def trained_replies(roster: Roster, method: FedDF) -> dict[int, Message]:
    """What the clients send after the warm-up."""
    state = method.server_init(roster)
    return {
        i: method.client_update(
            method.client_init(site.client), site.client, method.broadcast(state, i), 0, RNG.child(i)
        ).message
        for i, site in enumerate(MIXED)
    }


@pytest.fixture(scope="module")
def replies() -> dict[int, Message]:
    return trained_replies(ROSTER, FedDF(learning_rate=5e-3))


def outputs(roster: Roster, client: int, weights: Tensor) -> Tensor:
    return logits_of(roster.network(client), weights, roster.alignment).clone()


def ensemble(roster: Roster, replies: dict[int, Message]) -> Tensor:
    return torch.stack([outputs(roster, c, r.arrays["weights"]) for c, r in replies.items()]).mean(0)


def distance(target: Tensor, logits: Tensor) -> float:
    """Mean KL[softmax(target) || softmax(logits)], by torch.distributions."""
    return float(kl_divergence(Categorical(logits=target.double()), Categorical(logits=logits.double())).mean())


def mean_weights(replies: dict[int, Message], members: tuple[int, ...]) -> Tensor:
    """The average of their weights by records."""
    counts = {c: replies[c].arrays["records"] for c in members}
    total = sum(counts.values(), torch.zeros(1))
    return sum((counts[c] / total * replies[c].arrays["weights"] for c in members), torch.zeros(()))


@given(st.integers(0, 10**6), st.floats(0.1, 20))
def test_the_divergence_is_torchs(seed: int, scale: float) -> None:
    target, logits = scale * torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(seed))
    assert divergence(target, logits) == pytest.approx(distance(target, logits), rel=1e-9, abs=1e-12)
    assert divergence(target, target) == pytest.approx(0, abs=1e-12)
    assert divergence(target, target + 3) == pytest.approx(0, abs=1e-6)  # a constant for all classes changes nothing


@pytest.mark.parametrize("models", [("mlp",), ("cnn2",)])
def test_one_client_of_one_architecture_keeps_its_weights_bit_for_bit(models: tuple[str, ...]) -> None:
    """The ensemble is the client's own model, so there is nothing to distil."""
    federation = Federation(FedDF(learning_rate=5e-3), small_sites(1, models=models))
    for _ in range(3):
        record = federation.step()
        [reached] = [state.weights for state in federation.engine._host.states.values()]  # type: ignore[attr-defined]
        assert torch.equal(federation.server.tensors()["weights"], reached)
        assert record.scores[0]["global"].to_dict() == record.scores[0]["fine_tuned"].to_dict()


def test_distillation_brings_every_student_nearer_to_the_ensemble(replies: dict[int, Message]) -> None:
    method = FedDF(distill_steps=60)
    state = method.server_update(method.server_init(ROSTER), replies, ROSTER, RNG)
    target = ensemble(ROSTER, replies)
    for members in ((0, 2), (1, 3)):
        before = distance(target, outputs(ROSTER, members[0], mean_weights(replies, members)))
        after = distance(target, outputs(ROSTER, members[0], state.of(members[0])))
        assert after < 0.5 * before, members


def test_without_steps_a_student_is_the_average_of_its_architectures_clients(replies: dict[int, Message]) -> None:
    method = FedDF(distill_steps=0)
    sent = {**replies, 2: Message({**replies[2].arrays, "records": torch.tensor([36.0])})}  # against the others' 12
    state = method.server_update(method.server_init(ROSTER), sent, ROSTER, RNG)
    expected = 0.25 * sent[0].arrays["weights"] + 0.75 * sent[2].arrays["weights"]
    torch.testing.assert_close(state.of(0), expected)
    torch.testing.assert_close(state.of(1), (sent[1].arrays["weights"] + sent[3].arrays["weights"]) / 2)


def test_a_student_that_only_got_worse_is_thrown_away(replies: dict[int, Message]) -> None:
    """A learning rate that destroys: the average itself stays."""
    method = FedDF(distill_steps=3, distill_learning_rate=50.0)
    state = method.server_update(method.server_init(ROSTER), replies, ROSTER, RNG)
    for members in ((0, 2), (1, 3)):
        torch.testing.assert_close(state.of(members[0]), mean_weights(replies, members), rtol=1e-5, atol=1e-7)


def test_the_ensemble_is_of_all_clients_whatever_their_architecture(replies: dict[int, Message]) -> None:
    """Another reply of a cnn2 changes the mlp's student."""
    method = FedDF(distill_steps=10)
    other = {**replies, 1: Message({**replies[1].arrays, "weights": 3 * replies[1].arrays["weights"]})}
    state = method.server_init(ROSTER)
    one, two = (method.server_update(state, sent, ROSTER, RNG).of(0) for sent in (replies, other))
    assert not torch.equal(one, two)


def test_students_have_the_sizes_of_their_architectures_and_clients_get_their_own() -> None:
    method = FedDF()
    assert SIZES[0] == SIZES[2] != SIZES[1] == SIZES[3]
    state = method.server_init(ROSTER)
    assert state.weights.shape == (SIZES[0] + SIZES[1],)
    for client, site in enumerate(MIXED):
        sent = method.broadcast(state, client).arrays["weights"]
        assert sent.shape == (SIZES[client],)
        assert method.expected_upload(ROSTER, client) == {
            "weights": Numbers((SIZES[client],)),
            "records": Numbers((1,), 0.0, 1e9),
        }
        assert torch.equal(sent, MIXED[client % 2].client.initial_weights())  # of the first with this architecture
        assert site.client.network.size == SIZES[client]
    numbered = Students(torch.cat([torch.full((SIZES[c],), float(c)) for c in (0, 1)]), state.spans)
    assert all(method.broadcast(numbered, c).arrays["weights"].eq(c % 2).all() for c in range(4))


def test_three_architectures_lie_side_by_side() -> None:
    sites = small_sites(5, models=("mlp", "cnn2", "cnn3"))
    state = FedDF().server_init(roster_of(sites))
    assert len({tuple(span) for span in state.spans.tolist()}) == 3
    for i, site in enumerate(sites):
        assert len(state.of(i)) == site.client.network.size
    assert sum(len(state.of(i)) for i in range(3)) == len(state.weights)


def test_an_architecture_of_which_nobody_replied_is_distilled_from_its_old_student(
    replies: dict[int, Message],
) -> None:
    method = FedDF(distill_steps=60)
    state = method.server_init(ROSTER)
    heard = {c: replies[c] for c in (0, 2)}
    new = method.server_update(state, heard, ROSTER, RNG)
    target = ensemble(ROSTER, heard)
    before = distance(target, outputs(ROSTER, 1, state.of(1)))
    after = distance(target, outputs(ROSTER, 1, new.of(1)))
    assert after < 0.5 * before
    expected = method.distil(ROSTER.network(1), state.of(1), ROSTER.alignment, target, RNG.child("distil", 1))
    assert torch.equal(new.of(1), expected)


def test_without_replies_the_students_stay() -> None:
    state = FedDF().server_init(ROSTER)
    assert FedDF().server_update(state, {}, ROSTER, RNG) is state


def test_no_alignment_set_is_refused() -> None:
    roster = dataclasses.replace(ROSTER, alignment=torch.zeros(0, 1, 8, 8))
    with pytest.raises(UserError, match=r"method 'feddf' distils .* data\.alignment must be at least 1"):
        FedDF().server_init(roster)


def test_scored_are_the_student_and_the_clients_own_weights() -> None:
    client = MIXED[1].client
    method = FedDF()
    state = method.client_init(client)
    student = Message({"weights": torch.ones(SIZES[1])})
    models = method.scored(state, client, student, RNG)
    assert list(models) == ["global", "fine_tuned"]
    assert torch.equal(models["global"].weights, student.arrays["weights"])
    assert models["fine_tuned"] is state
