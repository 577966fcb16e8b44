"""DP-FedAvg: how much noise there is and where, what is counted, and what is refused."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, Numbers
from fedbnn.federation.method import Promise
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods import DPFedAvg
from fedbnn.methods import noisy_sums as module
from fedbnn.methods.averaging import Global
from fedbnn.methods.dp_fedavg import clip_update
from fedbnn.privacy import Budget, Ledger, PrivacySettings, poisson_batch
from fedbnn.privacy.overview import overview
from fedbnn.runs.config import load_config
from fedbnn.runs.folder import read_json
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
Level = Literal["record", "user"]
LEVELS: tuple[Level, ...] = ("record", "user")


def upload(method: DPFedAvg, client: Client, start: Tensor, rng: Stream = RNG, round_number: int = 1) -> Tensor:
    message = Message({"weights": start})
    return method.client_update(method.client_init(client), client, message, round_number, rng).message.arrays[
        "weights"
    ]


# Record level: DP-SGD at the client


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("clip", [1e-3, 2.0])
def test_noise_of_one_step_has_the_stated_standard_deviation(rate: float, clip: float) -> None:
    """What is uploaded, less the step without noise, is N(0, (private_rate z C / (q M))^2)."""
    method = DPFedAvg(noise="seed", steps=1, sampling_rate=rate, clip=clip, private_rate=0.5, records=20)
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    sent = upload(method, client, start)
    batch = poisson_batch(12, rate, RNG.child("sample").torch())
    assert 0 < len(batch) <= 12
    step = 0.5 / (rate * 20) * clipped_gradients(client, start, batch, clip)
    sd = 0.5 * method.noise_multiplier(client.rounds) * clip / (rate * 20)
    noise = sent - start + step
    assert_normal(noise, sd)
    # With the signal left in, or a denominator of the records that there are, the check would fail.
    if clip > 1 and rate < 1:
        with pytest.raises(AssertionError):
            assert_normal(noise * 20 / 12, sd)


def test_noise_of_many_steps_adds_up() -> None:
    """With so much noise that the gradients are nothing beside it."""
    method = DPFedAvg(noise="seed", steps=9, sampling_rate=1.0, epsilon=0.01, records=RECORDS)
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    z = method.noise_multiplier(client.rounds)
    assert z * math.sqrt(SIZE) / 12 > 1000  # the length of the noise against the longest sum of clipped gradients
    assert_normal(upload(method, client, start) - start, 0.25 * z / 12 * 3)


def test_noise_differs_between_steps_clients_and_rounds() -> None:
    method = DPFedAvg(noise="seed", steps=1, sampling_rate=1.0, epsilon=0.1)
    federation = Federation(method, SITES)
    sent = []
    for number in range(2):
        starts = method.broadcast(federation.server, 0).arrays["weights"]  # type: ignore[arg-type]
        replies = dict(federation.engine.update(number, {c: Message({"weights": starts}) for c in range(4)}))
        sent += [reply.message.arrays["weights"] - starts for reply in replies.values()]
    correlation = torch.corrcoef(torch.stack(sent))
    assert (correlation - torch.eye(8)).abs().max() < 5 / math.sqrt(SIZE)


def test_an_empty_batch_is_noise_alone() -> None:
    method = DPFedAvg(noise="seed", steps=1, sampling_rate=0.01, records=RECORDS)
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    assert len(poisson_batch(12, 0.01, RNG.child("sample").torch())) == 0
    update = method.client_update(method.client_init(client), client, Message({"weights": start}), 1, RNG)
    assert update.info == {}
    sd = 0.25 * method.noise_multiplier(client.rounds) / (0.01 * 12)
    assert_normal(update.message.arrays["weights"] - start, sd)


def test_the_server_counts_every_client_alike_and_is_not_told_how_many_records_it_has() -> None:
    method = DPFedAvg(noise="seed", steps=1)
    roster = roster_of(SITES)
    assert method.expected_upload(roster, 0) == {"weights": Numbers((SIZE,))}
    sent = torch.randn(4, SIZE, generator=RNG.torch())
    replies = {c: Message({"weights": w}) for c, w in enumerate(sent)}
    found = method.server_update(method.server_init(roster), replies, roster, RNG)
    torch.testing.assert_close(found.weights, sent.mean(0))


def test_the_step_taken_is_clipped_by_record() -> None:
    """Of two updates with the same noise that differ in one record, the distance is at most rate * C / (q M)."""
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    method = DPFedAvg(noise="seed", steps=1, sampling_rate=1.0, clip=0.01, private_rate=100.0, records=RECORDS)
    spoiled = client.train.take(torch.arange(12))
    spoiled.x[3] *= 1e4
    one, other = (
        upload(method, dataclasses.replace(client, train=records), start) for records in (client.train, spoiled)
    )
    assert 0 < (one - other).norm() <= 2 * 100 * 0.01 / 12 * (1 + 1e-4)


# Accounting


def taken(method: DPFedAvg, client: Client, turns: int) -> float:
    """Epsilon on record after that many turns, each from other weights."""
    for number in range(turns):
        upload(method, client, client.initial_weights() + number, round_number=number)
    spent = method.privacy_spent(client, turns)
    assert spent is not None
    assert (spent.delta, spent.unit, spent.mechanism) == (1e-5, "record", "DP-SGD")
    return spent.epsilon


@pytest.mark.parametrize("turns", [0, 1, 3, 7])
def test_every_step_of_every_turn_is_on_record(tmp_path: Path, turns: int) -> None:
    method = DPFedAvg(steps=3, sampling_rate=0.3, epsilon=2.0)
    client = with_ledger(planned(6)[0].client, tmp_path)
    expected = independent_epsilon(method.noise_multiplier(6), 0.3, 3 * turns, 1e-5) if turns else 0.0
    assert taken(method, client, turns) == pytest.approx(expected, rel=3e-3)


def test_the_same_turn_again_costs_nothing_and_sends_the_same(tmp_path: Path) -> None:
    method, start = DPFedAvg(steps=1), SITES[0].client.initial_weights()
    client = with_ledger(SITES[0].client, tmp_path)
    first = upload(method, client, start)
    spent = method.privacy_spent(client, 1)
    assert torch.equal(upload(method, client, start), first)
    assert method.privacy_spent(client, 1) == spent
    for other in (upload(method, client, start, round_number=2), upload(method, client, start + 1)):
        assert not torch.equal(other, first)
    assert len(Ledger.read(client.account(method.budget).ledger).entries) == 3


def test_noise_that_a_seed_decides_promises_nothing(tmp_path: Path, tiny: tuple[str, ...]) -> None:
    for level in LEVELS:
        method = DPFedAvg(noise="seed", level=level)
        assert method.protects(PrivacySettings()) is None
        assert method.privacy_spent(SITES[0].client, 3) is None
        with pytest.raises(UserError, match="noise = 'seed' is for experiments on one machine"):
            method.check_deployed()
        DPFedAvg(level=level).check_deployed()
    result = result_of(tmp_path / "run", *tiny, "method=dp_fedavg", "methods.dp_fedavg.noise=seed")
    assert result["epsilon_spent"] is None
    assert not (tmp_path / "run" / "ledgers").exists()


def test_what_is_promised_is_the_methods_own_budget() -> None:
    promise = DPFedAvg(epsilon=2.0, delta=1e-6).protects(PrivacySettings())
    assert promise == Promise(Budget(2.0, 1e-6), "record")
    promise = DPFedAvg(epsilon=2.0, delta=1e-3, level="user").protects(PrivacySettings())
    assert promise == Promise(Budget(2.0, 1e-3), "client")


def test_the_number_of_records_does_not_show_in_the_size_of_the_noise() -> None:
    """A copy of one record more: with the true number in the denominator, the noise itself would give it away."""
    method = DPFedAvg(noise="seed", steps=1, sampling_rate=1.0, epsilon=0.001)
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    more = dataclasses.replace(client, train=client.train.take(torch.tensor([*range(12), 11])))
    sent = [upload(method, one, start) - start for one in (client, more)]
    # The same noise: what differs is one record's clipped gradient, and nothing else.
    assert (sent[0] - sent[1]).norm() <= 0.25 / 40 * (1 + 1e-3)
    assert sent[0].norm() > 1000 * (sent[0] - sent[1]).norm()


@pytest.mark.parametrize("turns", [1, 3, 7])
def test_every_turn_of_a_client_is_counted_at_user_level(turns: int) -> None:
    method = DPFedAvg(level="user", epsilon=2.0, delta=1e-3)
    spent = method.privacy_spent(planned(6)[0].client, turns)
    assert spent is not None
    assert spent.epsilon == pytest.approx(gaussian_epsilon(method.noise_multiplier(6), turns, 1e-3), rel=1e-6)
    assert (spent.delta, spent.unit, spent.mechanism) == (1e-3, "client", "DP-FedAvg")


@pytest.mark.parametrize("rounds", [1, 6])
@pytest.mark.parametrize(
    "method",
    [DPFedAvg(steps=3, sampling_rate=0.3), DPFedAvg(steps=2, sampling_rate=1.0)],
    ids=["sampled", "all"],
)
def test_the_planned_rounds_use_up_the_budget_and_no_turn_is_beyond(
    tmp_path: Path, method: DPFedAvg, rounds: int
) -> None:
    client = with_ledger(planned(rounds)[0].client, tmp_path)
    spent = [taken(method, client, turns) for turns in range(rounds + 2)]  # the warm-up counts
    assert 0.98 * method.epsilon < spent[-1] <= method.epsilon
    assert spent[0] == 0
    assert spent == sorted(set(spent))
    assert spent[(rounds + 1) // 2] < 0.8 * spent[-1]
    with pytest.raises(UserError, match="is refused: epsilon"):
        upload(method, client, client.initial_weights() - 1)


def test_a_user_level_run_uses_up_the_budget_too() -> None:
    method, client = DPFedAvg(level="user", epsilon=1.0, delta=1e-3), planned(6)[0].client
    spent = [method.privacy_spent(client, turns).epsilon for turns in range(8)]
    assert 0.98 < spent[-1] <= 1
    assert spent == sorted(set(spent))


def test_as_many_steps_are_taken_as_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def spy(n: int, rate: float, generator: torch.Generator | None = None) -> Tensor:
        drawn.append(rate)
        return poisson_batch(n, rate, generator)

    monkeypatch.setattr(module, "poisson_batch", spy)
    method = DPFedAvg(noise="seed", steps=4, sampling_rate=0.5)
    client = SITES[0].client
    for turns in (1, 2):
        upload(method, client, client.initial_weights())
        assert len(drawn) == method.releases(turns) == 4 * turns
    assert set(drawn) == {0.5}


def test_a_record_that_several_clients_hold_gets_more_noise(tmp_path: Path) -> None:
    data_settings, partition = DataSettings(alignment=10), PartitionSettings(clients=2, records_per_class=2)
    data = federate(load_dataset(data_settings), data_settings, partition, 0)
    assert data.multiplicity == 1
    shared = dataclasses.replace(data, client_indices=(data.client_indices[0],) * 2)
    assert shared.multiplicity == 2
    method = DPFedAvg(steps=2, sampling_rate=0.4)
    alone = method.noise_multiplier(5)
    assert method.noise_multiplier(5, shared.multiplicity) > 1.2 * alone
    client = with_ledger(planned(5)[0].client, tmp_path, multiplicity=2)
    assert method.noise_multiplier(5, 2) == pytest.approx(method.noise_multiplier(11), rel=1e-3)
    assert 0.98 * 3 < taken(method, client, 6) <= 3
    whole_clients = DPFedAvg(level="user")  # a client is hidden with all of its records, whoever else has them
    assert whole_clients.privacy_spent(client, 3) == whole_clients.privacy_spent(planned(5)[0].client, 3)


def test_a_smaller_budget_or_more_rounds_mean_more_noise() -> None:
    for level in LEVELS:
        base = DPFedAvg(level=level, epsilon=2.0, steps=2).noise_multiplier(5)
        assert DPFedAvg(level=level, epsilon=1.0, steps=2).noise_multiplier(5) > 1.5 * base
        assert DPFedAvg(level=level, epsilon=2.0, steps=2).noise_multiplier(20) > 1.5 * base
    more_steps = DPFedAvg(epsilon=2.0, steps=8).noise_multiplier(5)
    assert more_steps > 1.5 * DPFedAvg(epsilon=2.0, steps=2).noise_multiplier(5)


# What is refused


@pytest.mark.parametrize("level", LEVELS)
def test_a_round_beyond_the_planned_ones_is_refused(level: Level) -> None:
    federation = Federation(DPFedAvg(level=level, noise="seed", steps=1), planned(1))
    federation.run(1)
    before = federation.server
    with pytest.raises(UserError, match="is for 1 rounds and is spent: round 2 is refused"):
        federation.step()
    assert federation.server is before
    assert federation.round_number == 1


def test_a_delta_that_protects_no_record_is_refused() -> None:
    client = SITES[0].client
    with pytest.raises(UserError, match=r"delta = 0.084: client 'client-0' has 12 records") as caught:
        DPFedAvg(delta=0.084).client_init(client)
    assert "\n" not in str(caught.value)
    DPFedAvg(delta=0.083).client_init(client)  # 1 / 12 = 0.0833
    with pytest.raises(UserError, match="choose a smaller one"):
        DPFedAvg(delta=1 / 12).client_init(client)
    DPFedAvg(delta=0.5, level="user").client_init(client)
    with pytest.raises(UserError, match="protects none of 4 clients"):
        DPFedAvg(delta=0.5, level="user").server_init(roster_of(SITES))


def test_that_delta_is_refused_before_anything_is_written(tiny: tuple[str, ...], tmp_path: Path) -> None:
    config = load_config(None, [*tiny, "method=dp_fedavg", "methods.dp_fedavg.delta=0.3"])
    with pytest.raises(UserError, match="choose a smaller one"):
        fedbnn.run(config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# User level: a server that clips and adds noise


@pytest.fixture(scope="module")
def roster() -> Roster:
    return roster_of(SITES)


def updates(count: int, length: float) -> Tensor:
    rows = torch.randn(count, SIZE, generator=RNG.child("updates").torch())
    return rows * (length / rows.norm(dim=1, keepdim=True))


def server_after(method: DPFedAvg, roster: Roster, sent: dict[int, Tensor], state: Global, rng: Stream = RNG) -> Tensor:
    replies = {client: Message({"weights": update}) for client, update in sent.items()}
    return method.server_update(state, replies, roster, rng).weights


@pytest.mark.parametrize("clip", [0.5, 3.0])
@pytest.mark.parametrize("replying", [4, 2, 0])
def test_the_servers_noise_has_the_stated_standard_deviation(roster: Roster, clip: float, replying: int) -> None:
    """z C / N with N all clients, however many replied, also if nobody did."""
    method = DPFedAvg(level="user", noise="seed", clip=clip)
    state = method.server_init(roster)
    sent = updates(4, 0.9 * clip)[:replying]
    found = server_after(method, roster, dict(enumerate(sent)), state)
    noise = found - state.weights - sent.sum(0) / 4
    assert_normal(noise, method.noise_multiplier(roster.rounds) * clip / 4)


def test_the_sum_is_divided_by_all_clients_however_many_reply(roster: Roster) -> None:
    method = DPFedAvg(level="user", noise="seed")
    state = Global(torch.zeros(SIZE))
    sent = updates(4, 0.5)
    silence = server_after(method, roster, {}, state)
    for who in ((0,), (1, 3), (0, 1, 2, 3)):
        found = server_after(method, roster, {c: sent[c] for c in who}, state) - silence
        torch.testing.assert_close(found, sent[list(who)].sum(0) / 4, rtol=1e-3, atol=1e-6)


def test_the_server_clips_an_oversized_update(roster: Roster) -> None:
    method = DPFedAvg(level="user", noise="seed", clip=2.0)
    state = Global(torch.zeros(SIZE))
    honest, liar = updates(2, 1.0)
    silence = server_after(method, roster, {}, state)
    found = server_after(method, roster, {0: honest, 1: liar * 1e6}, state) - silence
    torch.testing.assert_close(found, (honest + liar * 2.0) / 4, rtol=1e-3, atol=1e-6)


def test_clipping_never_leaves_more_than_the_clip_and_never_turns() -> None:
    for row in updates(20, 1.0):
        for length, clip in ((0.3, 1.0), (1.0, 1.0), (7.0, 0.3), (0.0, 1.0)):
            cut = clip_update(row * length, clip)
            assert float(cut.double().norm()) <= clip
            torch.testing.assert_close(cut, row * min(length, clip), rtol=1e-5, atol=1e-9)


def test_a_client_sends_its_update_clipped() -> None:
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    for clip in (1e-3, 1e3):
        method = DPFedAvg(level="user", clip=clip)
        update = method.client_update(method.client_init(client), client, Message({"weights": start}), 1, RNG)
        whole = update.state.weights - start
        length = float(whole.norm())
        torch.testing.assert_close(
            update.message.arrays["weights"], whole * min(1.0, clip / length), rtol=1e-4, atol=1e-9
        )
        assert update.info["sent"] <= clip
    assert length > 1e-3


def test_the_servers_noise_is_charged_to_its_own_ledger_and_refused_beyond_the_budget(tmp_path: Path) -> None:
    sites = planned(2, small_sites(4, models=("mlp",), ledgers=tmp_path))
    method, roster = DPFedAvg(level="user", epsilon=1.0, delta=1e-3), roster_of(sites)
    state = method.server_init(roster)
    for number in range(3):
        state = method.server_update(state, {}, roster, Stream((0, "server", number)))
        on_record = overview(tmp_path / "server", 1e-3).epsilon
        assert on_record == pytest.approx(method.privacy_spent(sites[0].client, number + 1).epsilon, rel=1e-6)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"is refused: epsilon 1\.000 is spent"):
        method.server_update(state, {}, roster, Stream((0, "server", 3)))
    with pytest.raises(UserError, match="needs a place for its ledger"):
        method.server_update(state, {}, roster_of(SITES), RNG)


def test_the_servers_answer_is_found_again_by_the_run_or_by_the_sum(tmp_path: Path) -> None:
    """In a simulation other updates are other data; among sites a round that is held again is the same round."""
    sites = planned(12, small_sites(4, models=("mlp",), ledgers=tmp_path))
    method = DPFedAvg(level="user", epsilon=8.0, delta=1e-3)
    one, other = ({0: update} for update in updates(2, 0.5))
    for run, same in (("", False), ("a run", True)):
        roster = dataclasses.replace(roster_of(sites), run=run)
        state = method.server_init(roster)
        first = server_after(method, roster, one, state)
        assert torch.equal(server_after(method, roster, one, state), first)
        assert torch.equal(server_after(method, roster, other, state), first) == same


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1])
def test_weights_of_another_size_are_refused_before_anything_is_charged(
    level: Level, size: int, tmp_path: Path
) -> None:
    """One number would be spread over all weights, and the gap of its noise charged for that one alone."""
    client = with_ledger(SITES[0].client, tmp_path)
    with pytest.raises(UserError, match=f"weights of shape \\({size},\\) were sent: {SIZE} are needed"):
        upload(DPFedAvg(level=level), client, torch.zeros(size))
    assert not list(tmp_path.iterdir())


def test_a_clip_beyond_the_grid_is_refused() -> None:
    with pytest.raises(UserError, match="clip"):
        DPFedAvg(clip=2.0**20 + 1)


# Where randomness comes from


def test_noise_and_samples_of_the_system_do_not_follow_the_runs_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[int, ...]] = []

    def spy(*arguments: Any) -> Tensor:
        index = poisson_batch(*arguments)
        batches.append(tuple(index.tolist()))
        return index

    monkeypatch.setattr(module, "poisson_batch", spy)
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    for noise, repeats in (("seed", True), ("system", False)):
        method = DPFedAvg(noise=noise, steps=8, sampling_rate=0.5)  # type: ignore[arg-type]
        batches.clear()
        one, other = (upload(method, with_ledger(client, tmp_path / name), start) for name in "ab")
        assert torch.equal(one, other) is repeats
        # Twice the same 8 subsets of 12 records by chance: once in 2^96.
        assert (batches[:8] == batches[8:]) is repeats
        if not repeats:
            assert (one != other).float().mean() > 0.99


def test_another_seed_gives_another_noise() -> None:
    method = DPFedAvg(noise="seed", steps=1)
    client, start = SITES[0].client, SITES[0].client.initial_weights()
    one, other = (upload(method, client, start, Stream((seed, "test"))) for seed in (0, 1))
    assert (one != other).float().mean() > 0.99


def test_the_systems_noise_has_the_same_standard_deviation(roster: Roster, tmp_path: Path) -> None:
    """Within seven standard errors: these draws are never the same, and must not fail once in a year of runs."""
    method = DPFedAvg(level="user", noise="system")
    state = Global(torch.zeros(SIZE))
    places = [dataclasses.replace(roster, ledgers=tmp_path / name) for name in "ab"]
    one, other = (server_after(method, place, {}, state) for place in places)
    assert torch.equal(server_after(method, places[0], {}, state), one)  # the same question, the same answer
    z = (one - other).double() / (math.sqrt(2) * method.noise_multiplier(roster.rounds) / 4)
    assert abs(z.var() - 1) < 7 * math.sqrt(2 / SIZE)
    method = DPFedAvg(noise="system", steps=1, sampling_rate=1.0, epsilon=0.01, records=RECORDS)
    client, start = with_ledger(SITES[0].client, tmp_path / "client"), SITES[0].client.initial_weights()
    z = (upload(method, client, start) - start).double() / (0.25 * method.noise_multiplier(12) / 12)
    assert abs(z.var() - 1) < 7 * math.sqrt(2 / SIZE)


# What a run says


def result_of(folder: Path, *changes: str) -> dict[str, Any]:
    result = fedbnn.run(load_config(None, changes), folder)
    assert json.loads(json.dumps(result)) == read_json(folder / "result.json")
    return read_json(folder / "result.json")


def test_a_runs_result_states_the_guarantee(tiny: tuple[str, ...], tmp_path: Path) -> None:
    changes = (*tiny, "method=dp_fedavg", "methods.dp_fedavg.steps=2", "methods.dp_fedavg.epsilon=4.0")
    result = result_of(tmp_path / "record", *changes)
    assert (result["delta"], result["privacy_unit"], result["mechanism"]) == (1e-5, "record", "DP-SGD")
    assert 0.98 * 4 < result["epsilon_spent"] <= 4
    z = DPFedAvg(steps=2, epsilon=4.0).noise_multiplier(2)
    assert result["epsilon_spent"] == pytest.approx(independent_epsilon(z, 0.5, 2 * 3, 1e-5), rel=3e-3)
    result = result_of(tmp_path / "user", *changes, "methods.dp_fedavg.level=user", "methods.dp_fedavg.delta=0.01")
    assert (result["delta"], result["privacy_unit"], result["mechanism"]) == (0.01, "client", "DP-FedAvg")
    assert 0.98 * 4 < result["epsilon_spent"] <= 4


def test_who_takes_part_most_often_decides_what_was_spent(tiny: tuple[str, ...], tmp_path: Path) -> None:
    changes = (*tiny, "method=dp_fedavg", "methods.dp_fedavg.steps=2", "participation=0.3", "rounds=4", "seed=1")
    result = result_of(tmp_path / "run", *changes)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    turns = [sum(line["client"] == client and "bytes_up" in line for line in lines) for client in range(3)]
    assert sum(turns) == 3 + 4
    assert max(turns) < 5
    z = DPFedAvg(steps=2).noise_multiplier(4)
    expected = independent_epsilon(z, 0.5, 2 * max(turns), 1e-5)
    assert result["epsilon_spent"] == pytest.approx(expected, rel=3e-3)
    assert result["epsilon_spent"] < 3


@pytest.mark.parametrize("method", ["fedavg", "fedbnn", "local"])
def test_other_methods_promise_nothing(tiny: tuple[str, ...], tmp_path: Path, method: str) -> None:
    result = result_of(tmp_path / "run", *tiny, f"method={method}", "rounds=1")
    assert "epsilon_spent" in result
    assert result["epsilon_spent"] is None
    assert not {"delta", "privacy_unit", "mechanism"} & result.keys()


def test_scored_are_the_average_and_a_copy_tuned_at_home() -> None:
    method = DPFedAvg(noise="seed", steps=1)
    client, message = SITES[0].client, first_message(method, list(SITES))
    models = method.scored(method.client_init(client), client, message, RNG)
    assert list(models) == ["global", "fine_tuned"]
    assert torch.equal(models["global"].weights, message.arrays["weights"])
    tuned, _ = method.train(message.arrays["weights"], client, 1, RNG.child("fine-tune"))
    assert torch.equal(models["fine_tuned"].weights, tuned)
