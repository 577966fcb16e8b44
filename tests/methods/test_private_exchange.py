"""FedBNN and FedMD under every mechanism: what is sent, what it costs, and what is refused."""

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.features.public import public
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Distributions, Integers, Message, Numbers, check
from fedbnn.federation.parties import Client
from fedbnn.methods import METHODS, DPFedAvg, FedBNN, FedMD, Local, LocalBNN
from fedbnn.methods.consensus import join
from fedbnn.methods.mechanisms.dp_moments import CommonHead
from fedbnn.methods.mechanisms.mechanism import ConsensusState
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import Ledger, Plan, PrivacySettings, onto_simplex
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.head import MOMENTS, TEACHER, Shape, improved
from fedbnn.privacy.sums import RELEASED, UNIT
from fedbnn.runs.config import load_config
from fedbnn.runs.folder import read_json
from tests.federation_sample import small_sites
from tests.methods import dying_exchange

RNG = Stream((0, "test"))
Exchanging = FedBNN | FedMD
METHODS_HERE: tuple[Exchanging, ...] = (FedBNN(prior_steps=2, mc_samples=2), FedMD(digest_steps=2))
FAST = METHODS_HERE[1]
Private = Literal["dp_teacher", "dp_moments", "output_perturbation"]
MECHANISMS: tuple[Private, ...] = ("dp_teacher", "dp_moments", "output_perturbation")
every_method = pytest.mark.parametrize("method", METHODS_HERE, ids=lambda method: method.name)
every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


def protected(mechanism: Private, **changes: Any) -> PrivacySettings:
    return PrivacySettings(**{"mechanism": mechanism, "dimensions": 12, "force": True, **changes})


def sites_of(folder: Path, mechanism: Private, clients: int = 3, rounds: int = 2, **changes: Any) -> list[Site]:
    return small_sites(clients, models=("mlp",), rounds=rounds, privacy=protected(mechanism, **changes), ledgers=folder)


def client_of(folder: Path, mechanism: Private, **changes: Any) -> Client:
    return sites_of(folder, mechanism, 1, **changes)[0].client


def sent(
    method: Exchanging, client: Client, message: Message | None = None, number: int = 0, rng: Stream = RNG
) -> Message:
    return method.client_update(method.client_init(client), client, message or Message(), number, rng).message


def spent(sites: list[Site]) -> list[float]:
    return [site.client.gate.guarantee().epsilon for site in sites]


def files(folder: Path) -> dict[str, bytes]:
    """Everything that a ledger keeps."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def a_head(seed: int, shape: tuple[int, int] = (12, 10)) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# What a run costs


@every_method
@every_mechanism
def test_whatever_its_length_a_run_costs_what_was_planned(
    method: Exchanging, mechanism: Private, tmp_path: Path
) -> None:
    """Also a second run with another seed: what was asked before is answered from the ledger, for nothing."""
    releases = {"dp_teacher": 1, "dp_moments": 1, "output_perturbation": 3}[mechanism]
    plan = Plan.of(1e-5, epsilon=3.0, releases=releases)
    phi_bars = []
    for seed in (0, 1):
        sites = sites_of(tmp_path, mechanism)
        federation = Federation(method, sites, seed=seed)
        for number in range(3):
            record = federation.step(evaluate=number == 2)
            assert [turn.rejected for turn in record.turns.values()] == ["", "", ""]
            done = releases if seed else min(number + 1, releases)
            assert spent(sites) == pytest.approx([plan.spent(done)] * 3, rel=3e-6)
            assert max(spent(sites)) <= 3
        assert isinstance(federation.server, ConsensusState)
        assert federation.server.phi_bar is not None
        phi_bars.append(federation.server.phi_bar)
        guarantee = method.privacy_spent(sites[0].client, 3)
        assert guarantee is not None
        assert (guarantee.unit, guarantee.mechanism, guarantee.delta) == ("record", mechanism, 1e-5)
    assert torch.equal(*phi_bars)
    torch.testing.assert_close(phi_bars[0].sum(1), torch.ones(30))
    assert (phi_bars[0] >= 0).all()


@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments"])
@pytest.mark.parametrize("noise", ["continuous", "discrete"])
def test_a_budget_for_several_releases(mechanism: Private, noise: str, tmp_path: Path) -> None:
    sites = sites_of(tmp_path, mechanism, releases=2, noise=noise)
    federation = Federation(FAST, sites)
    seen = []
    for _ in range(4):
        federation.step(evaluate=False)
        seen.append(max(spent(sites)))
    half, whole = (Plan.of(1e-5, epsilon=3.0, releases=2).spent(count) for count in (1, 2))
    expected = [half, whole, whole, whole] if mechanism == "dp_moments" else [whole] * 4
    assert seen == pytest.approx(expected, rel=1e-5)
    assert seen[-1] <= 3


def test_who_does_not_take_part_spends_nothing(tmp_path: Path) -> None:
    """Everybody is in the warm-up; then one of three, and another round of noise is asked from that one only."""
    sites = sites_of(tmp_path, "dp_moments", releases=3)
    federation = Federation(FAST, sites, participation=0.3)
    took_part = [0] * 3
    for _ in range(3):
        for client in federation.step(evaluate=False).turns:
            took_part[client] += 1
    assert sum(took_part) == 5
    plan = Plan.of(1e-5, epsilon=3.0, releases=3)
    assert spent(sites) == pytest.approx([plan.spent(count) for count in took_part], rel=3e-6)


def test_a_record_that_several_clients_hold_is_charged_for_each(tmp_path: Path) -> None:
    client = dataclasses.replace(client_of(tmp_path, "dp_teacher"), multiplicity=4)
    sent(FAST, client)
    [charge] = Ledger.read(client.gate.account.ledger).entries
    plan = Plan.of(1e-5, epsilon=3.0, releases=1, multiplicity=4)
    assert charge.cost.mu == pytest.approx(plan.mu, rel=3e-6) == pytest.approx(2 / plan.noise_multiplier, rel=3e-6)


# What is sent


@every_method
@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments"])
def test_the_personal_models_outputs_are_not_even_worked_out(
    method: Exchanging, mechanism: Private, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("the personal model's outputs were asked for")

    monkeypatch.setattr("fedbnn.methods.bayesian.weight_draws", never)
    monkeypatch.setattr("fedbnn.methods.fedmd.point_outputs", never)
    client = client_of(tmp_path, mechanism)
    check(
        sent(method, client, Message({"head": a_head(0)})),
        method.expected_upload(roster_of(sites_of(tmp_path, mechanism)), 0),
    )
    others = [client_of(tmp_path, "output_perturbation")]
    if not isinstance(method, FedBNN):  # for whom its head speaks where nothing is protected
        others.append(dataclasses.replace(client, privacy=PrivacySettings()))
    for other in others:
        with pytest.raises(AssertionError, match="were asked for"):
            sent(method, other)


@every_method
@pytest.mark.parametrize("mechanism", ["dp_teacher", "dp_moments"])
def test_the_personal_model_and_its_training_do_not_change_what_is_sent(
    method: Exchanging, mechanism: Private, tmp_path: Path
) -> None:
    client = client_of(tmp_path, mechanism)
    head = {"head": a_head(0)}
    first = method.client_update(method.client_init(client), client, Message(head), 0, RNG)
    training = TrainingSettings(local_epochs=2, warmup_epochs=3, batch_size=5)
    other = dataclasses.replace(client, model=ModelSettings("cnn2"), training=training, seed=7)
    consensus = torch.full((30, 10), 0.1)
    for changed, number in ((other, 0), (other, 1), (client, 2)):
        message = Message({"phi_bar": consensus, **head} if number else head)
        second = method.client_update(method.client_init(changed), changed, message, number, Stream((9, number)))
        assert second.message.to_bytes() == first.message.to_bytes()
    before, after = (next(iter(update.state.tensors().values())) for update in (first, second))
    assert (before != after).any()
    assert len(Ledger.read(client.gate.account.ledger).entries) == 1


def teacher_from(client: Client) -> Tensor:
    """The outputs of a head that is fitted from the stored releases alone."""
    gate = client.gate
    folder = gate.account.ledger
    head, plan = gate.shape.empty(), protected("dp_teacher", releases=gate.settings.releases).plan(2, 1)
    for charge in Ledger.read(folder).entries:
        stored = np.frombuffer((folder / "releases" / f"{charge.release}.bin").read_bytes(), np.int64)
        total = torch.from_numpy(stored * UNIT)
        sd = plan.noise_multiplier * gate.shape.sensitivity
        head = improved(head, total, sd, gate.public.moments, gate.shape, TEACHER)
    return (gate.public.phi @ head).softmax(1)


def test_a_teacher_sends_what_follows_from_the_stored_releases(tmp_path: Path) -> None:
    client = client_of(tmp_path, "dp_teacher", releases=3)
    phi = sent(FAST, client).arrays["phi"]
    torch.testing.assert_close(phi, teacher_from(client), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(phi.sum(1), torch.ones(30))


def test_moments_send_the_stored_whole_numbers_and_zeros_when_nothing_is_asked(tmp_path: Path) -> None:
    client = client_of(tmp_path, "dp_moments")
    sums = sent(FAST, client, Message({"head": a_head(0)})).arrays["sums"]
    [stored] = (client.gate.account.ledger / "releases").glob("*.bin")
    assert sums.numpy().tobytes() == stored.read_bytes()
    before = files(tmp_path)
    nothing = sent(FAST, client, Message({"phi_bar": torch.full((30, 10), 0.1)}), 1).arrays["sums"]
    assert nothing.dtype == torch.int64
    assert nothing.shape == sums.shape
    assert not nothing.any()
    assert files(tmp_path) == before


def test_outputs_are_sent_with_noise_and_not_twice_with_another(tmp_path: Path) -> None:
    client = client_of(tmp_path, "output_perturbation", epsilon=1e6)
    phi = sent(FAST, client).arrays["phi"]
    own = FAST.predict(
        FAST.client_update(FAST.client_init(client), client, Message(), 0, RNG).state, client, client.alignment, RNG
    )
    plan = Plan.of(1e-5, epsilon=1e6, releases=3)
    noise = (phi - own.probs).double() / (plan.noise_multiplier * math.sqrt(2 * 30))
    assert abs(noise.square().mean() - 1) < 6 * math.sqrt(2 / 300)
    assert torch.equal(sent(FAST, client, rng=Stream((5,))).arrays["phi"], phi)
    assert not torch.equal(sent(FAST, client, number=1).arrays["phi"], phi)


@every_method
def test_a_record_without_finite_numbers_does_not_show(method: Exchanging, tmp_path: Path) -> None:
    """Neither as an error nor in what is sent; the personal model is the client's own affair."""
    sites = sites_of(tmp_path, "dp_teacher")
    spoiled = sites[0].client.train.take(torch.arange(12))
    spoiled.x[3] = math.nan
    client = dataclasses.replace(sites[0].client, train=spoiled, identity=None)
    agreed = method.expected_upload(roster_of(sites), 0)
    consensus = Message({"phi_bar": torch.full((30, 10), 0.1)})
    check(sent(method, client), agreed)
    check(sent(method, client, consensus, 1), agreed)


# What a server can get


@every_method
def test_a_server_that_asks_for_ever_more_is_refused_and_nothing_more_leaves(
    method: Exchanging, tmp_path: Path
) -> None:
    client = client_of(tmp_path, "dp_moments", releases=2)
    answers = [sent(method, client, Message({"head": a_head(seed)}), seed).to_bytes() for seed in range(2)]
    before = files(tmp_path)
    for seed in range(2, 5):
        with pytest.raises(UserError, match=r"is refused: epsilon 3\.000 is spent on this data") as caught:
            sent(method, client, Message({"head": a_head(seed)}), seed)
        assert "\n" not in str(caught.value)
    assert [sent(method, client, Message({"head": a_head(seed)}), 9).to_bytes() for seed in range(2)] == answers
    assert files(tmp_path) == before


class Greedy(FedMD):
    """A server with a new question in every round."""

    def broadcast(self, state: ConsensusState, client: int) -> Message:
        return Message({"head": torch.rand(12, 10), "noise": torch.zeros(1), "clip": torch.full((1,), 1e5)})


def test_that_stops_the_run_with_one_clear_line(tmp_path: Path) -> None:
    sites = sites_of(tmp_path, "dp_moments", releases=2)
    federation = Federation(Greedy(digest_steps=1), sites)
    for _ in range(2):
        federation.step(evaluate=False)
    before = files(tmp_path)
    with pytest.raises(UserError, match="is spent on this data"):
        federation.step(evaluate=False)
    assert federation.round_number == 1
    assert files(tmp_path) == before
    assert max(spent(sites)) <= 3


def test_a_question_that_was_not_agreed_on_is_not_answered(tmp_path: Path) -> None:
    client = client_of(tmp_path, "dp_teacher")
    first = sent(FAST, client).to_bytes()
    before = files(tmp_path)
    assert sent(FAST, client, Message({"head": a_head(0), "epsilon": torch.tensor([99.0])})).to_bytes() == first
    assert files(tmp_path) == before
    with pytest.raises(UserError, match=r"it must be \(12, 10\)"):
        sent(FAST, client_of(tmp_path, "dp_moments"), Message({"head": a_head(0, (12, 11))}))


# The server's half


def test_the_server_adds_whole_numbers_and_takes_the_step_of_their_sum(tmp_path: Path) -> None:
    roster = roster_of(sites_of(tmp_path, "dp_moments", releases=2))
    state = FAST.server_init(roster)
    assert isinstance(state, CommonHead)
    assert not state.head.any()
    assert FAST.broadcast(state, 0).arrays.keys() == {"head"}
    generator = torch.Generator().manual_seed(0)
    sums = torch.randint(-(2**40), 2**40, (3, 121), generator=generator)
    found = FAST.server_update(state, {c: Message({"sums": one}) for c, one in enumerate(sums)}, roster, RNG)

    shape, known = Shape(12, 10), public(roster.alignment, "auto", 12)
    sd = Plan.of(1e-5, epsilon=3.0, releases=2).noise_multiplier * shape.sensitivity * math.sqrt(3)
    total = torch.tensor([sum(column) for column in sums.T.tolist()]).double() * UNIT
    expected = improved(state.head, total, sd, known.moments, shape, MOMENTS)
    assert isinstance(found, CommonHead)
    assert found.phi_bar is not None
    torch.testing.assert_close(found.head, expected)
    torch.testing.assert_close(found.phi_bar, (known.phi @ found.head).softmax(1))
    assert FAST.broadcast(found, 0).arrays.keys() == {"head", "phi_bar"}

    # Nothing but the sum matters: who sent which part of it does not.
    moved = sums.clone()
    moved[0] += sums[2]
    moved[2] = 0
    other = FAST.server_update(state, {c: Message({"sums": one}) for c, one in enumerate(moved)}, roster, RNG)
    assert other.head is not None
    assert torch.equal(other.head, found.head)

    last = FAST.server_update(found, {1: Message({"sums": sums[1]})}, roster, RNG)
    assert last.head is not None
    assert not torch.equal(last.head, found.head)
    assert FAST.broadcast(last, 0).arrays.keys() == {"phi_bar"}
    for replies in ({0: Message({"sums": sums[0]})}, {}):
        assert FAST.server_update(last, replies, roster, RNG) is last
    assert FAST.server_update(found, {}, roster, RNG) is found


@every_mechanism
def test_what_is_agreed(mechanism: Private, tmp_path: Path) -> None:
    roster = roster_of(sites_of(tmp_path, mechanism))
    noisy = Numbers((30, 10), -RELEASED * UNIT, RELEASED * UNIT)
    expected = {
        "dp_moments": {"sums": Integers((121,), RELEASED)},
        "output_perturbation": {"phi": noisy},
        "dp_teacher": {"phi": Distributions((30, 10))},
    }
    assert FAST.expected_upload(roster, 0) == expected[mechanism]


def test_every_mechanism_has_its_own_way_to_join_outputs(tmp_path: Path) -> None:
    """Whatever `consensus` says; without a mechanism it is followed."""
    phi = torch.rand(3, 30, 10, generator=torch.Generator().manual_seed(0))
    replies = {client: Message({"phi": one}) for client, one in enumerate(phi)}
    for mechanism in ("dp_teacher", "output_perturbation"):
        roster = roster_of(sites_of(tmp_path, mechanism))  # type: ignore[arg-type]
        found = [
            method.server_update(method.server_init(roster), replies, roster, RNG).phi_bar
            for method in (FedMD(consensus="mean_logits"), FedMD(consensus="sharpened"))
        ]
        assert found[0] is not None
        assert found[1] is not None
        assert torch.equal(found[0], found[1])
        by_class = join(phi, "by_class", FedMD().sharpen)
        expected = by_class if mechanism == "dp_teacher" else onto_simplex(phi.mean(0)).float()
        torch.testing.assert_close(found[0], expected)
    open_roster = roster_of(small_sites(3, models=("mlp",)))
    plain = FedMD(consensus="mean_probabilities")
    phi_bar = plain.server_update(plain.server_init(open_roster), replies, open_roster, RNG).phi_bar
    assert phi_bar is not None
    torch.testing.assert_close(phi_bar, phi.mean(0))


@every_mechanism
def test_a_servers_state_can_be_saved_and_loaded(mechanism: Private, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    sites = sites_of(tmp_path / "ledgers", mechanism, releases=3)
    straight = Federation(FAST, sites)
    straight.step(evaluate=False)
    straight.save(tmp_path / "state")
    resumed = Federation(FAST, sites)
    resumed.load(tmp_path / "state", 0)
    for federation in (straight, resumed):
        federation.step(evaluate=False)
        federation.step(evaluate=False)
    mine, theirs = resumed.server.tensors(), straight.server.tensors()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert all(len(Ledger.read(site.client.gate.account.ledger).entries) == 3 for site in sites)


# What is refused, before any work


# That protect what they send themselves, or send nothing that could be protected, stand last.
PROTECTED = ("fedbnn", "fedbnn_paper", "fedmd", "dp_fedavg", "dp_fedsgd", "dp_scaffold", "pate", "local_bnn", "local")
REFUSED = tuple(name for name in METHODS if name not in PROTECTED)


def test_methods_that_cannot_protect_what_they_send_refuse_and_others_do_not(tmp_path: Path) -> None:
    client = client_of(tmp_path, "dp_teacher")
    for name, cls in METHODS.items():
        cls().check_client(dataclasses.replace(client, privacy=PrivacySettings()))
        if name in REFUSED:
            with pytest.raises(UserError, match=f"method '{name}' has no private exchange: privacy.mechanism = 'dp_t"):
                cls().check_client(client)
        else:
            cls().check_client(client)


@pytest.mark.parametrize("name", REFUSED)
def test_they_refuse_in_a_federation_that_is_made_by_hand_too(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no private exchange") as caught:
        Federation(METHODS[name](), sites_of(tmp_path, "dp_teacher"))
    assert "\n" not in str(caught.value)


def test_methods_that_send_nothing_or_protect_it_themselves_run(tmp_path: Path) -> None:
    for method in (Local(), LocalBNN(mc_samples=1), DPFedAvg(steps=1)):
        sites = sites_of(tmp_path, "dp_teacher", rounds=1)
        assert not list(tmp_path.iterdir())
        Federation(method, sites).run(1)
    assert {site.client.ledgers for site in sites} == set(tmp_path.iterdir())  # those of DP-FedAvg


def test_a_delta_that_protects_no_record_is_refused(tmp_path: Path) -> None:
    FAST.check_client(client_of(tmp_path, "dp_teacher", delta=0.08))
    with pytest.raises(
        UserError, match="client 'client-0' has 12 records, and a delta of 1 / 12 or more protects none"
    ):
        FAST.check_client(client_of(tmp_path, "dp_teacher", delta=1 / 12))


def test_output_perturbation_is_refused_where_its_noise_drowns_everything(tmp_path: Path) -> None:
    drowned = roster_of(sites_of(tmp_path, "output_perturbation", force=False))
    with pytest.raises(
        UserError, match=r"for 3 releases of 30 outputs needs noise of standard deviation 18\.7 .*privacy.force"
    ):
        FAST.server_init(drowned)
    FAST.server_init(roster_of(sites_of(tmp_path, "output_perturbation")))
    FAST.server_init(roster_of(sites_of(tmp_path, "output_perturbation", force=False, epsilon=300.0)))
    for mechanism in ("dp_teacher", "dp_moments"):
        FAST.server_init(roster_of(sites_of(tmp_path, mechanism, force=False)))  # type: ignore[arg-type]


def test_what_drowns_is_what_is_left_after_averaging(tmp_path: Path) -> None:
    """One half per probability is the limit: 30 outputs, one release, and the noise that leaves just that."""
    for clients in (1, 4):
        limit = 0.5 * math.sqrt(clients / (2 * 30))
        epsilon = Plan.of(1e-5, noise=limit, releases=1).spent()
        accepted, refused = (
            roster_of(
                sites_of(tmp_path, "output_perturbation", clients, force=False, releases=1, epsilon=epsilon * off)
            )
            for off in (1.01, 0.99)
        )
        FAST.server_init(accepted)
        with pytest.raises(UserError, match="nothing could be learned"):
            FAST.server_init(refused)


def test_ledgers_need_a_place(tmp_path: Path) -> None:
    client = dataclasses.replace(client_of(tmp_path, "dp_teacher"), ledgers=None)
    with pytest.raises(
        UserError, match=r"needs a place for ledgers of what is spent: make_sites\(..., ledgers=folder\)"
    ):
        sent(FAST, client)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["method=fedavg"], "method 'fedavg' has no private exchange"),
        (["privacy.delta=0.2"], "choose a smaller one"),
        (["privacy.mechanism=output_perturbation"], "nothing could be learned"),
        (["privacy.features=fourier", "privacy.dimensions=2"], "privacy.dimensions = 2"),
        (["data.alignment=0"], "data.alignment must be at least 1"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_is_written(
    tiny: tuple[str, ...], tmp_path: Path, changes: list[str], problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        fedbnn.run(load_config(None, [*tiny, "privacy.mechanism=dp_teacher", *changes]), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# Whole runs


def result_of(folder: Path, *changes: str) -> dict[str, Any]:
    fedbnn.run(load_config(None, [*changes, "rounds=1", "privacy.dimensions=12"]), folder)
    found: dict[str, Any] = read_json(folder / "result.json")
    return found


@every_mechanism
def test_a_run_states_what_its_ledgers_say(tiny: tuple[str, ...], tmp_path: Path, mechanism: Private) -> None:
    result = result_of(tmp_path / "run", *tiny, f"privacy.mechanism={mechanism}", "privacy.force=true")
    assert (result["delta"], result["privacy_unit"], result["mechanism"]) == (1e-5, "record", mechanism)
    assert 2.9999 < result["epsilon_spent"] <= 3
    ledgers = ledgers_in(tmp_path / "run" / "ledgers")
    assert len(ledgers) == 3
    found = [Ledger.read(ledger) for ledger in ledgers]
    assert result["epsilon_spent"] == max(one.spent(1e-5) for one in found)
    assert [one.owner for one in found] == ["client-0", "client-1", "client-2"]


def test_ledgers_that_are_kept_outlive_a_run(tiny: tuple[str, ...], tmp_path: Path) -> None:
    """Another method, and another run, on the same records: the same releases, and nothing more is spent."""
    kept = (*tiny, "privacy.mechanism=dp_teacher", f"privacy.ledgers={tmp_path / 'kept'}")
    first = result_of(tmp_path / "one", *kept)
    before = files(tmp_path / "kept")
    assert len(before) > 9
    assert not (tmp_path / "one" / "ledgers").exists()
    for number, change in enumerate(["method=fedmd", "methods.fedbnn.gamma=0.5", "training.local_epochs=2"]):
        again = result_of(tmp_path / str(number), *kept, change)
        assert again["epsilon_spent"] == first["epsilon_spent"]
    assert files(tmp_path / "kept") == before
    with pytest.raises(UserError, match="is spent on this data"):
        result_of(tmp_path / "more", *kept, "privacy.epsilon=3.5")
    assert files(tmp_path / "kept") == before


# Death in the middle of a turn


def test_wherever_a_client_is_killed_nothing_is_undercounted_and_no_noise_is_drawn_twice(tmp_path: Path) -> None:
    """SIGKILL at 50 moments of a turn of two releases, and a restart: see `dying_exchange`."""
    moments = 50
    result = subprocess.run(
        [sys.executable, str(dying_exchange.__file__), str(tmp_path), str(moments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["steps"] > 2 * moments
    assert len({death["step"] for death in found["deaths"]}) == moments
    assert {death["charges"] for death in found["deaths"]} == {0, 1, 2}
    plan, everywhere = dying_exchange.PRIVACY.plan(12, 1), dying_exchange.a_client(tmp_path)
    first_noise = set()
    for number, death in enumerate(found["deaths"]):
        folder = tmp_path / str(number)
        notes = [line.split() for line in (folder / "notes").read_text().splitlines()]
        assert death["outcomes"] == ["killed", *(["refused"] if death["torn"] else []), "finished"]
        if death["torn"]:
            assert "remove this one line" in (folder / "refused").read_text()
        # Charged before noise is drawn, and before anything is stored.
        assert death["drawings"] <= death["charges"]
        assert len(death["stored"]) <= death["charges"]
        # Never under-counted, and not charged again for starting again.
        client = dataclasses.replace(everywhere, ledgers=folder / "ledgers")
        entries = Ledger.read(client.gate.account.ledger).entries
        assert [entry.cost.mu for entry in entries] == [plan.mu, plan.mu]
        assert plan.spent() * (1 - 1e-9) < client.gate.guarantee().epsilon <= 3
        # What was stored when it died is what is stored now: one noise a release.
        stored = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (client.gate.account.ledger / "releases").glob("*.bin")
        }
        assert death["stored"].items() <= stored.items()
        assert stored == {f"{entry.release}.bin": entry.sha256 for entry in entries}
        # What left, before death or after it, is one and the same, and follows from what is stored.
        messages = {note[1] for note in notes if note[0] == "sent"}
        assert len(messages) == 1
        phi = Message.from_bytes(bytes.fromhex(messages.pop())).arrays["phi"]
        torch.testing.assert_close(phi, teacher_from(client), rtol=1e-4, atol=1e-5)
        first_noise.add(entries[0].sha256)
    assert len(first_noise) == moments  # fresh in every process, whatever the seed
