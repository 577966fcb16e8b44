"""DP-SCAFFOLD: SCAFFOLD where there is no noise, DP-FedAvg where controls agree, and sends noisy sums alone."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Promise
from fedbnn.federation.parties import Client
from fedbnn.methods import DPFedAvg, DPScaffold, Scaffold, noisy_sums
from fedbnn.methods.noisy_sums import NoisySums
from fedbnn.methods.remembered import Carried
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import Budget, Ledger, PrivacySettings
from tests.noisy_sample import RECORDS, SITES, SIZE, clipped_gradients, independent_epsilon, planned, with_ledger

RNG = Stream((0, "test"))


def drawn(seed: int, size: float = 0.05) -> Tensor:
    return size * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def turn(
    method: Scaffold, client: Client, control: Tensor, own: Tensor, round_number: int = 1, by: float = 0.0
) -> Mapping[str, Tensor]:
    """What a client sends that is asked at its first weights, plus a number."""
    start = client.initial_weights() + by
    message = Message({"weights": start, "control": control})
    return method.client_update(Carried(start, own), client, message, round_number, RNG).message.arrays


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise, and no client that has another number of records than M."""
    monkeypatch.setattr(noisy_sums, "with_noise", lambda total, *_: total)


@pytest.mark.usefixtures("quiet")
def test_without_noise_and_clipping_a_turn_is_scaffolds_on_all_records() -> None:
    training = TrainingSettings(local_epochs=4, batch_size=RECORDS)
    client = dataclasses.replace(SITES[0].client, training=training)
    method = DPScaffold(noise="seed", clip=1e4, sampling_rate=1.0, records=RECORDS, steps=4, rate=0.2)
    found = turn(method, client, drawn(1), drawn(2))
    expected = turn(Scaffold(rate=0.2), client, drawn(1), drawn(2))
    for name in ("weights", "control"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-5)
    assert (found["weights"] - client.initial_weights()).norm() > 0.5


@pytest.mark.usefixtures("quiet")
def test_the_warm_up_finds_controls_and_moves_nothing() -> None:
    method = DPScaffold(noise="seed", clip=0.5, sampling_rate=1.0, records=20, steps=3)
    federation = Federation(method, SITES)
    federation.step(evaluate=False)
    server, first = federation.server, roster_of(SITES).initial_weights(0)
    torch.testing.assert_close(server.tensors()["weights"], first)
    for site, sent in zip(SITES, server.tensors()["sent"], strict=True):
        expected = clipped_gradients(site.client, first, torch.arange(RECORDS), 0.5) / 20
        torch.testing.assert_close(sent, expected, rtol=1e-4, atol=1e-6)
    federation.step(evaluate=False)
    assert (federation.server.tensors()["weights"] - first).norm() > 0.01


def test_where_controls_agree_a_turn_is_dp_fedavgs_under_the_same_noise() -> None:
    shared = {"noise": "seed", "steps": 3, "clip": 0.7, "records": RECORDS}
    client = SITES[0].client
    found = turn(DPScaffold(rate=0.3, **shared), client, drawn(1), drawn(1))["weights"]
    message = Message({"weights": client.initial_weights()})
    method = DPFedAvg(private_rate=0.3, **shared)
    expected = method.client_update(method.client_init(client), client, message, 1, RNG).message.arrays["weights"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    apart = turn(DPScaffold(rate=0.3, **shared), client, drawn(1), drawn(2))["weights"] - found
    # Another correction moves every step by as much, and where later gradients are met besides.
    torch.testing.assert_close(apart, -0.3 * 3 * (drawn(1) - drawn(2)), rtol=0.2, atol=0.02)


def test_one_record_moves_what_leaves_by_no_more_than_the_clip() -> None:
    """In a turn of one sum, under the same noise; far out, it moves it as far as the bound says."""
    method = DPScaffold(noise="seed", steps=1, sampling_rate=1.0, clip=0.3, records=20, rate=0.5)
    client = SITES[0].client
    base, apart = turn(method, client, drawn(1), drawn(2)), []
    for gone in range(RECORDS):
        fewer = client.train.take(torch.arange(RECORDS)[torch.arange(RECORDS) != gone])
        other = turn(method, dataclasses.replace(client, train=fewer), drawn(1), drawn(2))
        apart.append([float((other[name] - base[name]).norm()) for name in ("control", "weights")])
    controls, weights = map(max, zip(*apart, strict=True))
    assert 0.9 * 0.3 / 20 < controls <= 0.3 / 20 * (1 + 1e-3)
    assert weights <= 0.5 * 0.3 / 20 * (1 + 1e-3)


def test_what_leaves_is_worked_out_from_the_release_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the records are: with one and the same release, two clients that share nothing send the same."""
    one, other = SITES[0].client, dataclasses.replace(SITES[1].client, index=0, name="client-0")
    assert not torch.equal(one.train.x, other.train.x)
    released = drawn(3)
    monkeypatch.setattr(NoisySums, "turn", lambda *_: released)
    one.network.weights.zero_()
    method = DPScaffold(steps=4, rate=0.2)
    found, again = turn(method, one, drawn(1), drawn(2)), turn(method, other, drawn(1), drawn(2))
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert torch.equal(found["control"], released)
    torch.testing.assert_close(found["weights"], one.initial_weights() - 0.8 * (released - drawn(2) + drawn(1)))


def test_a_turn_is_one_charge_of_its_steps_and_the_control_costs_nothing(tmp_path: Path) -> None:
    shared = {"steps": 2, "sampling_rate": 0.4, "epsilon": 2.0}
    method, average = DPScaffold(**shared), DPFedAvg(**shared)
    client = with_ledger(planned(3)[0].client, tmp_path)
    assert method.noise_multiplier(3, 2) == average.noise_multiplier(3, 2)
    for number in range(4):
        turn(method, client, drawn(1), drawn(2), number)
        spent = method.privacy_spent(client, number + 1)
        assert spent is not None
        expected = independent_epsilon(average.noise_multiplier(3), 0.4, 2 * (number + 1), 1e-5)
        assert spent.epsilon == pytest.approx(expected, rel=3e-3)
        assert len(Ledger.read(client.account(method.budget).ledger).entries) == number + 1
    assert (spent.mechanism, spent.unit) == ("DP-SCAFFOLD", "record")
    assert 0.98 * 2 < spent.epsilon <= 2
    with pytest.raises(UserError, match="is refused: epsilon"):
        turn(method, client, drawn(1), drawn(2), 1, by=1.0)
    with pytest.raises(UserError, match="round 4 is refused"):
        turn(method, client, drawn(1), drawn(2), 4)


def test_the_same_turn_sends_the_same_and_any_other_is_charged(tmp_path: Path) -> None:
    method, client = DPScaffold(steps=1), with_ledger(SITES[0].client, tmp_path)
    first = turn(method, client, drawn(1), drawn(2))
    client.network.weights.zero_()
    assert all(torch.equal(array, first[name]) for name, array in turn(method, client, drawn(1), drawn(2)).items())
    others = [
        turn(method, client, drawn(1), drawn(2), 2),
        turn(method, client, drawn(1), drawn(2), 1, by=1.0),
        turn(method, client, drawn(9), drawn(2)),
        turn(method, client, drawn(1), drawn(9)),
    ]
    assert all((one["control"] != first["control"]).float().mean() > 0.99 for one in others)
    assert len(Ledger.read(client.account(method.budget).ledger).entries) == 5


def test_what_is_promised_and_what_is_refused(tmp_path: Path) -> None:
    assert DPScaffold(epsilon=2.0).protects(PrivacySettings()) == Promise(Budget(2.0, 1e-5), "record")
    assert DPScaffold(noise="seed").protects(PrivacySettings()) is None
    with pytest.raises(UserError, match=r"methods\.dp_scaffold\.noise = 'seed' is for experiments"):
        DPScaffold(noise="seed").check_deployed()
    with pytest.raises(UserError, match=r"methods\.dp_scaffold\.delta = 0\.1: client 'client-0' has 12 records"):
        DPScaffold(delta=0.1).check_client(SITES[0].client)
    client = with_ledger(SITES[0].client, tmp_path)
    with pytest.raises(UserError, match=rf"control of shape \(1,\) were sent: {SIZE} are needed"):
        turn(DPScaffold(), client, torch.zeros(1), drawn(2))
    assert not list(tmp_path.iterdir())


def test_scored_are_the_servers_model_and_a_copy_tuned_at_home() -> None:
    method, client = DPScaffold(noise="seed"), SITES[0].client
    message = Message({"weights": drawn(1), "control": drawn(2)})
    models = method.scored(method.client_init(client), client, message, RNG)
    assert torch.equal(models["global"].weights, message.arrays["weights"])
    tuned, _ = method.train(message.arrays["weights"], client, 1, RNG.child("fine-tune"))
    assert torch.equal(models["fine_tuned"].weights, tuned)
