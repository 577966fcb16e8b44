"""FedBNN: two questions to one model, a client that does not unlearn, and what leaves it under every mechanism."""

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, check
from fedbnn.federation.parties import Client
from fedbnn.federation.scored import answered, predicted, scored_models
from fedbnn.methods import FedBNN, FedBNNPaper, LocalBNN
from fedbnn.methods.head import Head
from fedbnn.models.bayes import Prediction
from fedbnn.models.label_prior import ratio, uniform
from fedbnn.models.training import Records
from fedbnn.privacy import PrivacySettings
from tests.federation_sample import small_sites

RNG = Stream((0, "test"))
SMALL: dict[str, Any] = {"prior_steps": 3, "mc_samples": 2, "head_sd": 3.5}


@pytest.fixture(scope="module")
def client() -> Client:
    return small_sites(1, models=("mlp",))[0].client


def turn(method: Any, client: Client, message: Message | None = None, number: int = 0) -> Any:
    return method.client_update(method.client_init(client), client, message or Message(), number, RNG)


def consensus(client: Client, seed: int = 0) -> Message:
    shape = (len(client.alignment), client.classes)
    return Message({"phi_bar": 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))})


# Two questions


def both(client: Client, x: Tensor, message: Message) -> tuple[FedBNN, dict[str, Prediction]]:
    method = FedBNN(**SMALL)
    models = scored_models(method, turn(method, client).state, client, message, RNG)
    return method, {str(variant): one for variant, one in predicted(method, models, client, x, RNG).items()}


def test_personal_and_general_are_two_questions_to_the_same_draws(client: Client) -> None:
    method, found = both(client, client.alignment[:9], consensus(client))
    assert list(found) == ["personal", "general"]
    personal, general = found["personal"], found["general"]
    assert personal.draws.shape == general.draws.shape == (20, 9, 10)
    by_hand = general.draws * client.own_shares
    torch.testing.assert_close(personal.draws.double(), by_hand / by_hand.sum(2, keepdim=True), rtol=1e-4, atol=1e-6)
    again = general.under(ratio(client.own_shares, uniform(10)), client.own_shares)
    for part in dataclasses.fields(Prediction):
        assert torch.equal(getattr(again, part.name), getattr(personal, part.name)), part.name
    torch.testing.assert_close(answered(method, general, "general", client, "own").draws, personal.draws)
    assert general.prior is not None
    assert personal.prior is not None
    assert torch.equal(general.prior, uniform(10))
    assert torch.equal(personal.prior, client.own_shares)


def test_where_a_client_holds_all_classes_alike_both_questions_are_one(client: Client) -> None:
    x = client.alignment[:20]
    alike = dataclasses.replace(client, train=Records(x, torch.arange(20) % 10))
    _, found = both(alike, x[:5], consensus(alike))
    assert torch.equal(found["personal"].draws, found["general"].draws)
    _, found = both(client, x[:5], consensus(client))
    assert not torch.equal(found["personal"].draws, found["general"].draws)


def test_the_newest_consensus_counts_in_answers_and_the_network_stays(client: Client) -> None:
    method = FedBNN(**SMALL)
    state = turn(method, client).state
    one, other = (method.scored(state, client, consensus(client, seed), RNG)["general"] for seed in (0, 1))
    assert torch.equal(one.theta, other.theta)
    assert not torch.equal(one.head, other.head)  # type: ignore[arg-type]
    for found, seed in ((one, 0), (other, 1)):
        expected = Head.of(client, 3.5, method.trust).fit(consensus(client, seed).arrays["phi_bar"])
        assert torch.equal(found.head, expected)  # type: ignore[arg-type]


def test_logits_of_a_prediction_are_the_heads_and_a_part_of_the_networks(client: Client) -> None:
    """Draws of the network are repeated beside those of the head."""
    method, message = FedBNN(**SMALL, head_weight=0.8, network_weight=0.4), consensus(client)
    state = method.scored(turn(method, client).state, client, message, RNG)["general"]
    head, x = Head.of(client, 3.5, method.trust), client.alignment
    found = method.predict(state, client, x, RNG)
    network = method.outputs(state.q, client, x, RNG)
    assert state.head is not None
    said = head.draws(state.head, head.records, x, 20, RNG) + head.beyond(x, 20, RNG)
    logs = network.draws.double().clamp_min(1e-6).log().repeat(10, 1, 1)
    expected = (0.8 * said + 0.4 * logs).softmax(2)
    torch.testing.assert_close(found.draws, expected.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.probs, found.draws.mean(0))


def test_a_network_counts_for_more_the_less_the_alignment_set_tells_of_own_records(client: Client) -> None:
    noise = 0.2 * torch.randn(client.alignment.shape, generator=torch.Generator().manual_seed(0))
    strange = dataclasses.replace(client, alignment=noise)
    apart = FedBNN(**SMALL).head_of(strange).apart
    assert apart > 1
    assert FedBNN(**SMALL).weights(client) == (1.1, 0.3)
    assert FedBNN(**SMALL).weights(strange) == (1.1, pytest.approx(1 - 0.7 / apart))
    assert FedBNN(**SMALL, network_weight=0.4).weights(strange) == (1.1, 0.4)


def test_a_network_alone_answers_without_a_head(client: Client) -> None:
    method = FedBNN(**SMALL, head=False)
    state = turn(method, client).state
    found = method.predict(state, client, client.alignment, RNG)
    assert torch.equal(found.probs, method.outputs(state.q, client, client.alignment, RNG).probs)


# Learning what does not depend on how common classes are


def test_a_class_that_a_client_does_not_hold_is_hardly_unlearned(client: Client) -> None:
    """Of a new network: how far the biases of the last layer are pushed down, with the offset and without."""
    network, held = client.network, client.train.y.unique()
    network.weights.copy_(client.initial_weights())
    absent = torch.ones(10, dtype=torch.bool).index_fill(0, held, False)
    offset = (client.own_shares * 10).log().float()
    slopes = []
    for records in (client.train, dataclasses.replace(client.train, offset=offset)):
        network.gradient.zero_()
        records.loss(network(records.x)).backward()
        last = list(network.module.parameters())[-1].grad
        assert last is not None
        slopes.append(last[absent].clone())
    assert (slopes[0] > 0.05).all()  # each absent class has about a tenth of the probability
    assert (slopes[1] > 0).all()
    assert (slopes[1] < slopes[0] / 3).all()
    # By hand: softmax(f + log(10 s)) instead of softmax(f).
    with torch.no_grad():
        f = network(client.train.x)
    torch.testing.assert_close(slopes[1], (f + offset).softmax(1).mean(0)[absent], rtol=1e-4, atol=1e-6)


def test_after_training_alone_absent_classes_are_likelier_than_without_the_offset(client: Client) -> None:
    long = dataclasses.replace(client, training=dataclasses.replace(client.training, warmup_epochs=40))
    absent = torch.ones(10, dtype=torch.bool).index_fill(0, client.train.y.unique(), False)

    def of_absent(method: Any) -> float:
        theta = turn(method, long).state.q
        return float(method.outputs(theta, long, long.alignment, RNG).probs[:, absent].sum(1).mean())

    assert of_absent(FedBNN(**SMALL)) > 2 * of_absent(LocalBNN(mc_samples=2))


def test_where_no_class_is_special_the_network_learns_as_the_papers(client: Client) -> None:
    """Without a head and rehearsal, and with all classes alike, the two are the same bit for bit."""
    alike = dataclasses.replace(client, train=Records(client.train.x[:10], torch.arange(10)))
    settings: dict[str, Any] = {"prior_steps": 3, "mc_samples": 2}
    ours, papers = FedBNN(**settings, head=False, rehearsal=0.0), FedBNNPaper(**settings)
    for message, number in ((Message(), 0), (consensus(alike), 1)):
        one, other = turn(ours, alike, message, number), turn(papers, alike, message, number)
        assert torch.equal(one.state.theta, other.state.theta)
        assert torch.equal(one.message.arrays["phi"], other.message.arrays["phi"])
        assert one.info == other.info
    one, other = (turn(method, client) for method in (ours, papers))
    assert not torch.equal(one.state.theta, other.state.theta)  # a client of some classes has an offset


def test_the_network_does_not_change_what_the_head_says(client: Client) -> None:
    expected = turn(FedBNN(**SMALL), client).message.arrays["phi"]
    other = dataclasses.replace(client, seed=7, training=dataclasses.replace(client.training, warmup_epochs=1))
    assert torch.equal(turn(FedBNN(**SMALL), other).message.arrays["phi"], expected)
    assert torch.equal(expected, Head.of(client, 3.5, 0.1).speak(None, None))


def test_networks_learn_in_the_first_the_last_and_every_so_many_rounds_before_it(client: Client) -> None:
    """In the others they stay as they are, and heads speak all the same."""
    planned = dataclasses.replace(client, rounds=7)
    method, said = FedBNN(**SMALL, network_every=3), []
    for number in range(8):
        state = method.client_init(planned)
        message = consensus(planned, seed=number) if number else Message()
        update = method.client_update(state, planned, message, number, RNG)
        assert torch.equal(update.state.theta, state.theta) == (number not in (0, 1, 4, 7)), number
        assert ("loss" in update.info) == (number in (0, 1, 4, 7))
        said.append(update.message.arrays["phi"])
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(said))


@pytest.mark.parametrize(
    ("head", "mechanism", "learns"),
    [(False, "none", True), (True, "none", False), (True, "dp_teacher", False), (True, "output_perturbation", True)],
)
def test_a_network_that_others_hear_learns_in_every_round(
    client: Client, head: bool, mechanism: Any, learns: bool
) -> None:
    planned = dataclasses.replace(client, rounds=7, privacy=PrivacySettings(mechanism=mechanism, force=True))
    assert FedBNN(head=head, network_every=3).network_learns(planned, 2) == learns


def test_it_knows_classes_that_it_never_saw() -> None:
    """What the method is for: clients of three classes each know those of the others."""
    sites = small_sites(6, models=("mlp",))

    def known(method: Any, variant: Any, rounds: int) -> float:
        last = Federation(method, sites).run(rounds)[-1]
        return sum(one[variant].scores["all_class_accuracy"] for one in last.scores.values()) / len(sites)

    alone, heard, found = (
        known(LocalBNN(mc_samples=2), "personal", 4),
        known(FedBNN(**SMALL), "general", 0),
        known(FedBNN(**SMALL), "general", 4),
    )
    assert alone < 0.35
    assert heard > alone
    assert found > 0.6
    assert found > heard + 0.2


def test_features_of_images_are_refused_for_a_table_before_any_work(client: Client) -> None:
    table = dataclasses.replace(client, alignment=torch.zeros(5, 4), privacy=PrivacySettings(features="scattering"))
    with pytest.raises(UserError, match=r"privacy\.features = 'scattering' needs images.*\(4,\)") as caught:
        FedBNN().check_client(table)
    assert "\n" not in str(caught.value)
    FedBNN(head=False).check_client(table)
    FedBNN().check_client(dataclasses.replace(table, alignment=client.alignment))


def test_one_alignment_point_is_enough(client: Client) -> None:
    """For which there are no features: heads say nothing but how common classes are."""
    lonely = dataclasses.replace(client, alignment=client.alignment[:1])
    method = FedBNN(**SMALL)
    update = turn(method, lonely, Message({"phi_bar": torch.zeros(1, 10)}), 1)
    models = method.scored(update.state, lonely, Message({"phi_bar": torch.zeros(1, 10)}), RNG)
    found = method.predict(models["general"], lonely, client.train.x, RNG)
    assert found.probs.isfinite().all()


# A run that goes on


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path: Path) -> None:
    """With half of the clients in a round: what a client sent last is its own, and is kept."""
    sites = small_sites(4, augment="flip_shift")
    whole, half, resumed = (Federation(FedBNN(**SMALL), sites, participation=0.5) for _ in range(3))
    expected = whole.run(3)
    half.run(1)
    folders = [tmp_path / name for name in ("whole", "half", "resumed")]
    for folder in folders:
        folder.mkdir()
    half.save(folders[1])
    for site in sites:
        kept = load_file(folders[1] / f"client-{site.client.index:04d}.safetensors")
        assert kept["sent"].shape == (30, 10)
    resumed.load(folders[1], 1)
    found = resumed.run(3)
    whole.save(folders[0])
    resumed.save(folders[2])
    for file in sorted(folders[0].iterdir()):
        one, other = load_file(file), load_file(folders[2] / file.name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), file.name
    for one_round, other_round in zip(expected[2:], found, strict=True):
        for index, scored in one_round.scores.items():
            assert {v: e.to_dict() for v, e in scored.items()} == {
                v: e.to_dict() for v, e in other_round.scores[index].items()
            }


# What leaves a client


def test_without_a_mechanism_only_outputs_on_the_alignment_set_leave(client: Client) -> None:
    method, roster = FedBNN(**SMALL), roster_of(small_sites(1, models=("mlp",)))
    message = turn(method, client, consensus(client), 1).message
    check(message, method.expected_upload(roster, 0))
    assert set(message.arrays) == {"phi"}
    assert message.arrays["phi"].shape == (30, 10)


@pytest.mark.parametrize(
    ("mechanism", "sent"), [("dp_teacher", {"phi"}), ("dp_moments", {"sums"}), ("output_perturbation", {"phi"})]
)
def test_under_a_mechanism_heads_do_not_speak_and_only_its_arrays_leave(
    mechanism: Any, sent: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    privacy = PrivacySettings(mechanism=mechanism, dimensions=12, force=True)
    sites = small_sites(3, models=("mlp",), rounds=1, privacy=privacy, ledgers=tmp_path)
    method = FedBNN(**SMALL)

    def unasked(*arguments: Any) -> Tensor:
        raise AssertionError("a head speaks of private records")

    left: list[Message] = []
    reply = FedBNN.replied

    def watched(self: FedBNN, *arguments: Any) -> Any:
        update = reply(self, *arguments)
        left.append(update.message)
        return update

    monkeypatch.setattr(Head, "speak", unasked)
    monkeypatch.setattr(FedBNN, "replied", watched)
    federation = Federation(method, sites)
    for record in federation.run(1):
        assert [one.rejected for one in record.turns.values()] == ["", "", ""]
        for scored in record.scores.values():
            assert list(scored) == ["personal", "general"]
    assert len(left) >= 6
    assert all(set(message.arrays) == sent for message in left)
    spent = [site.client.gate.guarantee().epsilon for site in sites]
    assert max(spent) <= 3
    federation.predict(0, sites[0].evaluation.x[:3])  # answers stay at home and cost nothing
    assert [site.client.gate.guarantee().epsilon for site in sites] == spent
