"""DP-FedSGD: one sum a turn, which one record moves by its clipped gradient and nothing else, and what it costs."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, check
from fedbnn.federation.method import Promise
from fedbnn.federation.parties import Client
from fedbnn.methods import DPFedAvg, DPFedSGD, noisy_sums
from fedbnn.methods.averaging import Global
from fedbnn.privacy import Budget, Ledger, PrivacySettings, poisson_batch
from fedbnn.privacy.sums import UNIT
from tests.federation_sample import first_message, small_sites
from tests.noisy_sample import (
    RECORDS,
    SITES,
    SIZE,
    assert_normal,
    clipped_gradients,
    gaussian_epsilon,
    independent_epsilon,
    planned,
    with_ledger,
)

RNG = Stream((0, "test"))


def sent(method: DPFedSGD, client: Client, start: Tensor, round_number: int = 1) -> Tensor:
    state, message = method.client_init(client), Message({"weights": start})
    reply = method.client_update(state, client, message, round_number, RNG).message
    check(reply, method.expected_upload(roster_of(SITES), 0))
    return reply.arrays["sum"]


def neighbours(client: Client) -> list[Client]:
    """With one record less, in every way, and one more: a copy, and one that is far out."""
    here, records = torch.arange(RECORDS), client.train
    fewer = [records.take(here[here != gone]) for gone in range(RECORDS)]
    copied, far = (records.take(torch.tensor([*range(RECORDS), 3])) for _ in range(2))
    far.x[-1] *= 1e4
    return [dataclasses.replace(client, train=one) for one in (*fewer, copied, far)]


@pytest.mark.parametrize("blown_up", [1.0, 300.0])
@pytest.mark.parametrize("clip", [1e-3, 2.0])
def test_one_record_more_or_less_moves_the_sum_by_no_more_than_the_clip(clip: float, blown_up: float) -> None:
    """Under the same noise the difference is exact: whole numbers, at weights that the server chose to be large."""
    method, client = DPFedSGD(noise="seed", clip=clip), SITES[0].client
    start = blown_up * client.initial_weights()
    base = sent(method, client, start)
    lengths = [float((sent(method, one, start) - base).double().norm() * UNIT) for one in neighbours(client)]
    assert max(lengths) <= clip
    assert max(lengths) > 0.99 * clip  # the bound is met: less would not do


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_a_sum_is_that_of_the_sample_with_the_stated_noise(rate: float) -> None:
    method, client = DPFedSGD(noise="seed", sampling_rate=rate, clip=0.5), SITES[0].client
    start = client.initial_weights()
    batch = poisson_batch(RECORDS, rate, RNG.child("sample").torch())
    noise = sent(method, client, start).double() * UNIT - clipped_gradients(client, start, batch, 0.5)
    assert_normal(noise, 0.5 * method.noise_multiplier(client.rounds))


def test_without_noise_and_clipping_a_round_is_a_step_down_the_mean_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all records of all clients, by autograd, as all clients have as many records as M says."""
    monkeypatch.setattr(noisy_sums, "with_noise", lambda total, *_: total)
    method = DPFedSGD(noise="seed", clip=1e4, records=RECORDS, rate=0.3)
    federation = Federation(method, SITES)
    weights = method.server_init(roster_of(SITES)).weights
    for _ in range(3):
        federation.step(evaluate=False)
        module, network = SITES[0].client.network.module, SITES[0].client.network
        network.weights.copy_(weights)
        network.gradient.zero_()
        for site in SITES:
            loss = functional.cross_entropy(module(site.client.train.x), site.client.train.y)
            (loss / len(SITES)).backward()
        weights = weights - 0.3 * network.gradient
        torch.testing.assert_close(federation.server.tensors()["weights"], weights, rtol=1e-4, atol=1e-6)
    assert (weights - method.server_init(roster_of(SITES)).weights).norm() > 0.1


def test_the_servers_step_counts_those_who_replied_alike() -> None:
    method, roster = DPFedSGD(rate=0.7, sampling_rate=0.5, records=20), roster_of(SITES)
    sums = torch.randint(-(2**40), 2**40, (2, SIZE), generator=torch.Generator().manual_seed(0))
    replies = {client: Message({"sum": total}) for client, total in zip((1, 3), sums, strict=True)}
    state = Global(torch.zeros(SIZE))
    found = method.server_update(state, replies, roster, RNG).weights
    expected = -0.7 * (sums[0] + sums[1]).double() * UNIT / (2 * 0.5 * 20)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-9)
    assert method.server_update(state, {}, roster, RNG) is state


def test_it_is_the_turn_of_dp_fedavg_with_one_step() -> None:
    """One step of each client, averaged, is the step with the averaged sums: under the same noise they agree."""
    shared = {"noise": "seed", "sampling_rate": 0.5, "clip": 0.7, "records": RECORDS}
    sums = Federation(DPFedSGD(rate=0.25, **shared), SITES)
    steps = Federation(DPFedAvg(private_rate=0.25, steps=1, **shared), SITES)
    for federation in (sums, steps):
        federation.run(2)
    found, expected = (one.server.tensors()["weights"] for one in (sums, steps))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_planned_rounds_use_up_the_budget_and_no_turn_is_beyond(rate: float, tmp_path: Path) -> None:
    method, rounds = DPFedSGD(epsilon=2.0, sampling_rate=rate), 3
    client = with_ledger(planned(rounds)[0].client, tmp_path)
    start, z, spent = client.initial_weights(), method.noise_multiplier(rounds), []
    for turn in range(rounds + 1):
        sent(method, client, start + turn, turn)
        guarantee = method.privacy_spent(client, turn + 1)
        assert guarantee is not None
        spent.append(guarantee.epsilon)
        alone = gaussian_epsilon(z, turn + 1, 1e-5) if rate == 1 else independent_epsilon(z, rate, turn + 1, 1e-5)
        assert spent[-1] == pytest.approx(alone, rel=3e-3)
    assert (guarantee.mechanism, guarantee.unit, guarantee.delta) == ("DP-FedSGD", "record", 1e-5)
    assert 0.98 * 2 < spent[-1] <= 2
    with pytest.raises(UserError, match="is refused: epsilon"):
        sent(method, client, start - 1)
    with pytest.raises(UserError, match="is for 3 rounds and is spent: round 4 is refused"):
        sent(method, client, start, rounds + 1)


def test_a_record_that_two_clients_hold_is_paid_for_twice(tmp_path: Path) -> None:
    method = DPFedSGD(epsilon=2.0)
    client = with_ledger(planned(3)[0].client, tmp_path, multiplicity=2)
    sent(method, client, client.initial_weights())
    z, guarantee = method.noise_multiplier(3, 2), method.privacy_spent(client, 1)
    assert guarantee is not None
    assert guarantee.epsilon == pytest.approx(gaussian_epsilon(z, 2, 1e-5), rel=1e-3)


def test_the_charge_is_on_record_before_a_record_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, client = DPFedSGD(), with_ledger(SITES[0].client, tmp_path)

    def dies(*_: object) -> None:
        raise RuntimeError("power is gone")

    monkeypatch.setattr(noisy_sums, "clipped_grid_sum", dies)
    with pytest.raises(RuntimeError):
        sent(method, client, client.initial_weights())
    assert len(Ledger.read(client.account(method.budget).ledger).entries) == 1


def test_the_same_question_has_the_same_answer_and_any_other_is_charged(tmp_path: Path) -> None:
    method, client = DPFedSGD(), with_ledger(SITES[0].client, tmp_path)
    start = client.initial_weights()
    first = sent(method, client, start)
    assert torch.equal(sent(method, client, start), first)
    for again in (sent(method, client, start, 2), sent(method, client, start + 1)):
        assert (again != first).float().mean() > 0.99
    assert len(Ledger.read(client.account(method.budget).ledger).entries) == 3


def test_what_is_promised_and_what_is_refused(tmp_path: Path) -> None:
    assert DPFedSGD(epsilon=2.0).protects(PrivacySettings()) == Promise(Budget(2.0, 1e-5), "record")
    assert DPFedSGD(noise="seed").protects(PrivacySettings()) is None
    with pytest.raises(UserError, match=r"methods\.dp_fedsgd\.noise = 'seed' is for experiments"):
        DPFedSGD(noise="seed").check_deployed()
    with pytest.raises(UserError, match=r"methods\.dp_fedsgd\.delta = 0\.1: client 'client-0' has 12 records"):
        DPFedSGD(delta=0.1).check_client(SITES[0].client)
    client = with_ledger(SITES[0].client, tmp_path)
    with pytest.raises(UserError, match=rf"weights of shape \(1,\) were sent: {SIZE} are needed"):
        sent(DPFedSGD(), client, torch.zeros(1))
    assert not list(tmp_path.iterdir())


def test_scored_are_the_servers_model_and_a_copy_tuned_at_home() -> None:
    sites = small_sites(1, models=("mlp",))
    method, client, message = DPFedSGD(noise="seed"), sites[0].client, first_message(DPFedSGD(), sites)
    models = method.scored(method.client_init(client), client, message, RNG)
    assert torch.equal(models["global"].weights, message.arrays["weights"])
    tuned, _ = method.train(message.arrays["weights"], client, 1, RNG.child("fine-tune"))
    assert torch.equal(models["fine_tuned"].weights, tuned)
