"""Local PATE: one record moves one vote at a point, counts leave once and with noise, and students learn from them."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, check
from fedbnn.federation.method import Promise
from fedbnn.federation.parties import Client
from fedbnn.methods import Pate
from fedbnn.methods import pate as module
from fedbnn.methods.pate import Polled, part_of
from fedbnn.models.bayes import logits_of
from fedbnn.privacy import Budget, Ledger, PrivacySettings
from fedbnn.privacy.sums import UNIT
from tests.federation_sample import small_sites
from tests.noisy_sample import RECORDS, SITES, assert_normal, gaussian_epsilon, with_ledger

RNG = Stream((0, "test"))
CLIENT = SITES[0].client
POINTS = len(CLIENT.alignment)
FAST = Pate(teachers=3, points=POINTS, teacher_epochs=6, digest_steps=3, learning_rate=3e-3)


def changed(method: Pate, **settings: object) -> Pate:
    return dataclasses.replace(method, **settings)  # type: ignore[arg-type]


def neighbours(client: Client) -> list[Client]:
    """With one record less, in every way, and one more: of another class, far out, and not even finite."""
    here, records = torch.arange(RECORDS), client.train
    found = [records.take(here[here != gone]) for gone in range(RECORDS)]
    for factor in (1.0, -1e4, math.nan):
        more = records.take(torch.tensor([*range(RECORDS), 3]))
        more.x[-1] *= factor
        more.y[-1] = (more.y[-1] + 1) % client.classes
        found.append(more)
    return [dataclasses.replace(client, train=one) for one in found]


def votes_of(method: Pate, client: Client, round_number: int = 0) -> Tensor:
    state = method.client_init(client)
    reply = method.client_update(state, client, Message(), round_number, RNG).message
    check(reply, method.expected_upload(roster_of(SITES), 0))
    return reply.arrays["votes"]


# One record


@pytest.mark.parametrize("teachers", [1, 3, 40])
def test_one_record_more_or_less_moves_at_most_one_vote_at_a_point(teachers: int) -> None:
    """From one class to another, or in or out with a part that was empty: whole numbers, so that it is exact."""
    method = changed(FAST, teachers=teachers)
    base, longest = method.counts(CLIENT, RNG), 0.0
    for client in neighbours(CLIENT):
        moved = method.counts(client, RNG) - base
        assert int(moved.clamp_min(0).sum(1).max()) <= 1
        assert int((-moved).clamp_min(0).sum(1).max()) <= 1
        longest = max(longest, float(moved.double().norm()))
    assert 0 < longest <= math.sqrt(2 * POINTS)


def test_the_bound_is_met_where_a_record_turns_its_teacher_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher that says at every point which number of records it has, in the last digit: all its votes move."""

    def train(self: Pate, weights: Tensor, client: Client, *_: object) -> tuple[Tensor, float]:
        return torch.full_like(weights, len(client.train)), 0.0

    def said(_: object, weights: Tensor, x: Tensor) -> Tensor:
        return torch.eye(CLIENT.classes)[int(weights[0]) % 2].expand(len(x), -1)

    monkeypatch.setattr(Pate, "train", train)
    monkeypatch.setattr(module, "logits_of", said)
    base = FAST.counts(CLIENT, RNG)
    apart = [float((FAST.counts(client, RNG) - base).double().norm()) for client in neighbours(CLIENT)]
    assert apart == pytest.approx([math.sqrt(2 * POINTS)] * len(apart))


def test_a_records_part_is_a_matter_of_its_content_alone() -> None:
    x, y = CLIENT.train.x, CLIENT.train.y
    parts = [part_of(*record, 5) for record in zip(x, y, strict=True)]
    order = torch.arange(RECORDS - 1, -1, -2)
    assert [part_of(x[i], y[i], 5) for i in order.tolist()] == [parts[i] for i in order.tolist()]
    many = [part_of(torch.full((4,), float(i)), torch.tensor(i % 2), 4) for i in range(4000)]
    assert all(850 < many.count(part) < 1150 for part in range(4))


def test_a_teacher_does_not_feel_how_much_chance_another_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of the global generator, as of dropout, in one part must not move another teacher's."""
    drawn: list[float] = []

    def train(self: Pate, weights: Tensor, client: Client, *_: object) -> tuple[Tensor, float]:
        torch.rand(100 * len(client.train))
        drawn.append(float(torch.rand(())))
        return weights, 0.0

    monkeypatch.setattr(Pate, "train", train)
    parts = [part_of(*record, 3) for record in zip(CLIENT.train.x, CLIENT.train.y, strict=True)]
    gone = parts.index(min(parts))
    fewer = CLIENT.train.take(torch.tensor([i for i in range(RECORDS) if i != gone]))
    assert len(set(parts)) == 3
    assert parts.count(min(parts)) > 1
    FAST.counts(CLIENT, RNG)
    FAST.counts(dataclasses.replace(CLIENT, train=fewer), RNG)
    assert drawn[1:3] == drawn[4:6]
    assert drawn[0] != drawn[3]


# What leaves


def test_every_teacher_has_one_vote_at_a_point() -> None:
    assert FAST.counts(CLIENT, RNG).sum(1).tolist() == [3] * POINTS
    alone = changed(FAST, teachers=1)
    teacher, _ = alone.train(CLIENT.initial_weights(), CLIENT, alone.teacher_epochs, RNG.child("teacher", 0))
    expected = logits_of(CLIENT.network, teacher, CLIENT.alignment).argmax(1)
    assert torch.equal(alone.counts(CLIENT, RNG).argmax(1), expected)
    assert int(changed(FAST, teachers=40).counts(CLIENT, RNG).sum(1).max()) <= RECORDS  # of parts that are not empty


def test_noise_has_the_deviation_that_the_sensitivity_asks_for() -> None:
    """For all points that are asked about, and not one of them."""
    found = []
    for seed in range(40):
        method = changed(FAST, noise="seed", teacher_epochs=0)
        noisy = method.polled(CLIENT, Stream((seed, "noise")))
        found.append((noisy.double() * UNIT - method.counts(CLIENT, RNG)).flatten())
    mu = 1 / 1.3905  # of epsilon = 3 at delta = 1e-5, see docs/what-is-protected.md
    assert_normal(torch.cat(found), math.sqrt(2 * POINTS) / mu)


def test_counts_are_charged_once_for_the_whole_run(tmp_path: Path) -> None:
    method, client = FAST, with_ledger(CLIENT, tmp_path)
    state, message = method.client_init(client), Message()
    replies = []
    for number in range(3):
        update = method.client_update(state, client, message, number, RNG.child(number))
        state, message = update.state, Message({"labels": torch.eye(10)[torch.arange(POINTS) % 10]})
        replies.append(update.message.arrays["votes"])
    assert all(torch.equal(one, replies[0]) for one in replies)
    again = method.client_update(method.client_init(client), client, Message(), 0, RNG.child("again"))
    assert torch.equal(again.message.arrays["votes"], replies[0])  # who forgot asks its ledger
    assert len(Ledger.read(client.account(method.budget).ledger).entries) == 1
    spent = method.privacy_spent(client, 3)
    assert spent is not None
    assert (spent.mechanism, spent.unit, spent.delta) == ("PATE", "record", 1e-5)
    assert 0.999 * 3 < spent.epsilon <= 3
    assert spent.epsilon == pytest.approx(gaussian_epsilon(1.3906, 1, 1e-5), rel=1e-3)
    with pytest.raises(UserError, match="is refused: epsilon"):
        votes_of(changed(FAST, points=5), client)


def test_a_record_that_two_clients_hold_is_paid_for_twice(tmp_path: Path) -> None:
    method, client = changed(FAST, teacher_epochs=0), with_ledger(CLIENT, tmp_path, multiplicity=2)
    sent = votes_of(method, client)
    spent = method.privacy_spent(client, 1)
    assert spent is not None
    assert spent.epsilon == pytest.approx(gaussian_epsilon(1.3906, 1, 1e-5), rel=1e-3)
    noise = (sent.double() * UNIT - method.counts(client, RNG)).flatten()
    assert noise.std() > 1.2 * 1.3906 * math.sqrt(2 * POINTS)  # sqrt(2) times as much, of 300 draws


def test_the_charge_is_on_record_before_a_teacher_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = with_ledger(CLIENT, tmp_path)

    def dies(*_: object) -> None:
        raise RuntimeError("power is gone")

    monkeypatch.setattr(Pate, "counts", dies)
    with pytest.raises(RuntimeError):
        votes_of(FAST, client)
    assert len(Ledger.read(client.account(FAST.budget).ledger).entries) == 1


# The server, and students


def test_the_server_adds_the_votes_of_all_who_were_heard() -> None:
    method, roster = changed(FAST, points=2, teachers=4), roster_of(SITES)
    state = method.server_init(roster)
    assert not method.broadcast(state, 0).arrays
    one, other = torch.zeros(2, 10), torch.zeros(2, 10)
    one[0, 3], one[1, 7], other[0, 5], other[0, 3], other[1, 7], other[1, 8] = 3, 2, 2.5, -2, 2, 1
    replies = {c: Message({"votes": (v / UNIT).long()}) for c, v in {1: one, 3: other}.items()}
    state = method.server_update(state, replies, roster, RNG)
    labels = method.broadcast(state, 0).arrays["labels"]
    assert torch.equal(labels, torch.eye(10)[[5, 7]])
    shares = method.__class__(points=2, teachers=4, target="shares").broadcast(state, 0).arrays["labels"]
    assert shares.sum(1).tolist() == pytest.approx([1, 1])
    assert shares[1, 7] - shares[1, 8] == pytest.approx(0.5 - 0.125)  # of 8 teachers, 4 and 1
    assert torch.equal(method.broadcast(method.without(state, 3), 0).arrays["labels"], torch.eye(10)[[3, 7]])
    assert torch.equal(method.server_update(state, {}, roster, RNG).votes, state.votes)


def told_classes(digest_steps: int) -> list[float]:
    """Of points that are labelled with classes which a client does not hold, how often its network says such a one."""
    sites = small_sites(6, batch_size=4)
    assert len({site.client.model.name for site in sites}) == 3
    method = changed(FAST, noise="seed", epsilon=1e6, teachers=1, teacher_epochs=60, digest_steps=digest_steps)
    federation, shares = Federation(method, sites), []
    federation.run(2)
    labels = method.broadcast(federation.server, 0).arrays["labels"].argmax(1)  # type: ignore[arg-type]
    for number, site in enumerate(sites):
        held = site.client.train.y
        foreign = method.asked(site.client.alignment)[torch.isin(labels, held, invert=True)]
        assert len(foreign) > 5
        said = federation.predict(number, foreign).logits.argmax(1)
        shares.append(float(torch.isin(said, held, invert=True).float().mean()))
    return shares


def test_students_of_any_architecture_learn_classes_that_they_do_not_hold() -> None:
    """Where there is next to no noise."""
    taught, alone = told_classes(100), told_classes(0)
    assert all(one > other + 0.2 for one, other in zip(taught, alone, strict=True)), (taught, alone)


def test_which_points_are_asked_about() -> None:
    ten = torch.arange(10.0)[:, None]
    assert changed(FAST, points=4).asked(ten).flatten().tolist() == [0, 2, 5, 7]
    assert torch.equal(changed(FAST, points=50).asked(ten), ten)


# What is promised and refused


def test_what_is_promised_and_what_is_refused() -> None:
    assert Pate(epsilon=2.0).protects(PrivacySettings()) == Promise(Budget(2.0, 1e-5), "record")
    assert Pate(noise="seed").protects(PrivacySettings()) is None
    with pytest.raises(UserError, match=r"methods\.pate\.noise = 'seed' is for experiments"):
        Pate(noise="seed").check_deployed()
    with pytest.raises(UserError, match=r"methods\.pate\.delta = 0\.1: client 'client-0' has 12 records"):
        Pate(delta=0.1).check_client(CLIENT)
    with pytest.raises(UserError, match=r"data\.alignment must be at least 1"):
        Pate().server_init(dataclasses.replace(roster_of(SITES), alignment=torch.zeros(0, 1, 8, 8)))
    message = Message({"labels": torch.zeros(1, 10)})
    with pytest.raises(UserError, match=r"labels of shape \(1, 10\) were sent: \(30, 10\) are needed"):
        FAST.client_update(FAST.client_init(CLIENT), CLIENT, message, 1, RNG)
    assert isinstance(Pate().server_init(roster_of(SITES)), Polled)
