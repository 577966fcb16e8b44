"""Methods that average weights: their server's mean in closed form, FedAvg as a limit, and one architecture for all."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.cli.app import main
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message, shape_of
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods import (
    APFL,
    FOLA,
    METHODS,
    Ditto,
    DPFedAvg,
    FedAvg,
    FedBNN,
    FedDF,
    FedDyn,
    FedMD,
    FedOpt,
    FedPD,
    FedProx,
    FedRep,
    FedSplit,
    PerFedAvg,
    PFedBayes,
    PFedGP,
    PFedMe,
    Scaffold,
)
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.pfedme import moreau
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import Records, TrainingSettings, epochs, steps
from fedbnn.runs.config import load_config
from tests.federation_sample import first_message, small_sites, unequal, with_client

RNG = Stream((0, "test"))
BY_RECORDS: tuple[Averaging[Any], ...] = (FedAvg(), FedProx(), PFedMe(), FedRep(), Ditto(), PerFedAvg(), APFL())
UNIFORM: tuple[Averaging[Any], ...] = (PFedBayes(), PFedGP(embedding=8), DPFedAvg(sampling_rate=1.0))
ALL: tuple[Method[Any, Any], ...] = (*BY_RECORDS, *UNIFORM, FOLA(), Scaffold(), FedOpt(), FedDyn(), FedPD(), FedSplit())
# What else is true of them is in tests of their own.
ELSEWHERE = (
    "fedbn",
    "ifca",
    "mocha",
    "fedbe",
    "fedpa",
    "pvi",
    "fedppd",
    "lr_bpfl",
    "fedma",
    "dp_fedsgd",
    "dp_scaffold",
)
NAMES = (*(method.name for method in ALL), *ELSEWHERE)


def name_of(method: Method[Any, Any]) -> str:
    return method.name


def states_after(method: Method[Any, Any], sites: Sequence[Site], rounds: int, folder: Path) -> dict[str, Tensor]:
    """All states, the server's and every client's, after these rounds."""
    federation = Federation(method, sites, seed=2, participation=0.7)
    federation.run(rounds)
    folder.mkdir()
    federation.save(folder)
    return {f"{f.name} {name}": t for f in sorted(folder.iterdir()) for name, t in load_file(f).items()}


# FedAvg and FedProx


def test_fedprox_without_its_pull_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    sites = unequal(small_sites(3, models=("cnn2",), batch_size=5), (12, 7, 3))
    average = states_after(FedAvg(learning_rate=2e-3), sites, 3, tmp_path / "fedavg")
    without = states_after(FedProx(learning_rate=2e-3, mu=0.0), sites, 3, tmp_path / "without")
    with_pull = states_after(FedProx(learning_rate=2e-3, mu=0.5), sites, 3, tmp_path / "with")
    assert average.keys() == without.keys() == with_pull.keys()
    assert len(average) == 4
    for name, tensor in average.items():
        assert torch.equal(tensor, without[name]), name
        assert not torch.equal(tensor, with_pull[name]), name


def test_a_stronger_pull_means_less_drift() -> None:
    sites = [
        with_client(site, training=TrainingSettings(local_epochs=20, batch_size=16))
        for site in small_sites(1, models=("mlp",))
    ]
    client, message = sites[0].client, first_message(FedAvg(), sites)
    drifts = []
    for mu in (0.0, 0.1, 0.6, 3.0):
        method = FedProx(learning_rate=2e-3, mu=mu)
        update = method.client_update(method.client_init(client), client, message, 1, RNG)
        drifts.append(update.info["drift"])
        distance = (update.state.weights - message.arrays["weights"]).norm()
        assert update.info["drift"] == pytest.approx(float(distance))
    assert all(less < 0.97 * more for more, less in itertools.pairwise(drifts)), drifts


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_local_training_is_adam_on_the_penalised_loss(mu: float) -> None:
    """The same by autograd on the loss with its penalty, on a module of its own."""
    site = small_sites(1, models=("mlp",), batch_size=5)[0]
    client, method = site.client, FedProx(learning_rate=3e-3, mu=mu)
    message = first_message(method, [site])
    found = method.client_update(method.client_init(client), client, message, 0, RNG).message.arrays["weights"]
    w = message.arrays["weights"].clone().requires_grad_()
    optimiser = torch.optim.Adam([w], lr=3e-3)
    for batch in epochs(client.train, client.training.warmup_epochs, 5, RNG.child("order").torch()):
        optimiser.zero_grad()
        penalty = mu / 2 * (w - message.arrays["weights"]).square().sum()
        (functional.cross_entropy(forward(client, w, batch.x), batch.y) + penalty).backward()
        optimiser.step()
    torch.testing.assert_close(found, w.detach(), rtol=1e-4, atol=1e-6)


def forward(client: Client, weights: Tensor, x: Tensor) -> Tensor:
    """The outputs of the client's network at these weights, whose parameters lie in them one after the other."""
    module, offset, parameters = client.network.module, 0, {}
    for name, parameter in module.named_parameters():
        parameters[name] = weights[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    return functional_call(module, parameters, (x,))


# The server's mean


def replies_of(method: Method[Any, Any], roster: Roster, counts: Sequence[int], seed: int) -> dict[int, Message]:
    """A random reply of every client."""
    generator, replies = torch.Generator().manual_seed(seed), {}
    for client, count in enumerate(counts):
        shapes = method.expected_upload(roster, client)
        arrays = {name: torch.randn(shape_of(form), generator=generator) for name, form in shapes.items()}
        if "records" in arrays:
            arrays["records"] = torch.tensor([float(count)])
        replies[client] = Message(arrays)
    return replies


@pytest.fixture(scope="module")
def roster() -> Roster:
    return roster_of(small_sites(4, models=("mlp",)))


@pytest.mark.parametrize("method", [*BY_RECORDS, *UNIFORM], ids=name_of)
@given(counts=st.lists(st.integers(1, 5000), min_size=4, max_size=4), seed=st.integers(0, 1000))
def test_the_servers_mean(method: Averaging[Any], roster: Roster, counts: list[int], seed: int) -> None:
    state, replies = method.server_init(roster), replies_of(method, roster, counts, seed)
    found = method.server_update(state, replies, roster, RNG).weights
    n = torch.tensor(counts if method.by_records else [1] * 4, dtype=torch.float64)
    stacked = torch.stack([reply.arrays["weights"].double() for reply in replies.values()])
    expected = (n[:, None] * stacked).sum(0) / n.sum()
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
    other_way = method.server_update(state, dict(reversed(replies.items())), roster, RNG).weights
    torch.testing.assert_close(other_way, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ALL, ids=name_of)
def test_nobody_is_ignored(method: Method[Any, Any], roster: Roster) -> None:
    state, replies = method.server_init(roster), replies_of(method, roster, (1, 2, 30, 400), 0)
    replies = {c: Message({k: a.abs() for k, a in r.arrays.items()}) for c, r in replies.items()}  # as precisions are
    reference = method.server_update(state, replies, roster, RNG).weights
    for client, reply in replies.items():
        changed = Message({**reply.arrays, "weights": reply.arrays["weights"] + 1000})
        moved = method.server_update(state, {**replies, client: changed}, roster, RNG).weights
        assert (moved > reference).all(), client


def test_clients_that_stay_away_do_not_count(roster: Roster) -> None:
    method, replies = FedAvg(), replies_of(FedAvg(), roster, (3, 1, 9, 9), 0)
    found = method.server_update(method.server_init(roster), {c: replies[c] for c in (0, 1)}, roster, RNG).weights
    expected = 0.75 * replies[0].arrays["weights"] + 0.25 * replies[1].arrays["weights"]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", [*ALL, PFedMe(beta=0.3), PFedBayes(beta=1.7)], ids=name_of)
def test_without_replies_the_state_stays(method: Method[Any, Any], roster: Roster) -> None:
    state = method.server_init(roster)
    after = method.server_update(state, {}, roster, RNG)
    assert all(torch.equal(tensor, after.tensors()[name]) for name, tensor in state.tensors().items())


@pytest.mark.parametrize("method", [FedAvg(), FOLA()], ids=name_of)
def test_replies_that_claim_no_records_leave_the_state(method: Method[Any, Any], roster: Roster) -> None:
    state = method.server_init(roster)
    after = method.server_update(state, replies_of(method, roster, (0, 0, -5, 0), 0), roster, RNG)
    assert torch.equal(after.weights, state.weights)


def test_clients_say_how_many_records_they_have() -> None:
    sites = unequal(small_sites(3, models=("mlp",)), (12, 7, 3))
    for method in (FedAvg(), FedProx(), PFedMe(iterations=1, inner_steps=1), FOLA()):
        for site, count in zip(sites, (12, 7, 3), strict=True):
            state, message = method.client_init(site.client), first_message(method, sites)
            reply = method.client_update(state, site.client, message, 0, RNG).message
            assert reply.arrays["records"].tolist() == [count]


def test_all_clients_start_from_the_same_weights() -> None:
    sites = small_sites(3, models=("mlp",))
    assert len({site.client.initial_weights().sum().item() for site in sites}) == 3
    state = FedAvg().server_init(roster_of(sites))
    assert torch.equal(state.weights, sites[0].client.initial_weights())
    assert all(torch.equal(FedAvg().broadcast(state, c).arrays["weights"], state.weights) for c in range(3))


# One architecture for all


@pytest.fixture
def mixed_roster() -> Roster:
    return roster_of(small_sites(5, models=("mlp", "cnn2")))


@pytest.mark.parametrize("method", ALL, ids=name_of)
def test_mixed_architectures_are_refused_with_names(method: Method[Any, Any], mixed_roster: Roster) -> None:
    with pytest.raises(UserError) as caught:
        method.server_init(mixed_roster)
    text = str(caught.value)
    assert "\n" not in text
    assert f"method '{method.name}'" in text
    assert "(mlp: client-0, client-2, client-4; cnn2: client-1, client-3)" in text


@pytest.mark.parametrize("method", ALL, ids=name_of)
def test_one_name_with_different_options_is_refused(method: Method[Any, Any], roster: Roster) -> None:
    models = tuple(ModelSettings("mlp", options={"hidden": [width]}) for width in (16, 16, 32, 16))
    with pytest.raises(UserError) as caught:
        method.server_init(dataclasses.replace(roster, models=models))
    assert 'mlp {"hidden": [16]}: client-0, client-1, client-3; mlp {"hidden": [32]}: client-2' in str(caught.value)


@pytest.mark.parametrize("method", ALL, ids=name_of)
def test_one_architecture_with_different_shares_is_allowed(method: Method[Any, Any], roster: Roster) -> None:
    models = (*(ModelSettings("mlp", share=share) for share in (1.0, 2.0, 3.0)), ModelSettings("mlp"))
    state = method.server_init(dataclasses.replace(roster, models=models))
    assert torch.equal(state.weights, method.server_init(roster).weights)


def test_of_many_clients_only_some_are_named(roster: Roster) -> None:
    names = tuple(f"c{i}" for i in range(30))
    models = tuple(ModelSettings("mlp" if i else "cnn2") for i in range(30))
    with pytest.raises(UserError, match=r"\(cnn2: c0; mlp: c1, c2, c3, c4, c5, c6 and 23 more\)"):
        FedAvg().server_init(dataclasses.replace(roster, names=names, models=models))


@pytest.mark.parametrize("method", [FedDF(), FedBNN(), FedMD()], ids=name_of)
def test_other_methods_take_mixed_architectures(method: Method[Any, Any], mixed_roster: Roster) -> None:
    method.server_init(mixed_roster)


def test_these_are_all_the_methods_that_refuse(mixed_roster: Roster) -> None:
    refusing = set()
    for name, cls in METHODS.items():
        try:
            cls().server_init(mixed_roster)
        except UserError:
            refusing.add(name)
    assert refusing == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_refused_before_anything_is_written(name: str, tiny: tuple[str, ...], tmp_path: Path) -> None:
    config = load_config(None, [*tiny, 'models=[{name="mlp"}, {name="cnn2"}]', f"method={name}"])
    with pytest.raises(UserError, match="one architecture"):
        fedbnn.compare(config, ["local", name], tmp_path / "out")
    with pytest.raises(UserError, match="one architecture"):
        fedbnn.run(config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_refuses_with_code_2(
    tiny: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for change in (*tiny, 'models=[{name="mlp"}, {name="cnn2"}]') for part in ("--set", change)]
    for command in (["compare", "--methods", "local,fedprox"], ["run", "--set", "method=fedprox"]):
        with pytest.raises(SystemExit) as stopped:
            main([*command, *sets, "--out", str(tmp_path / "out")])
        captured = capsys.readouterr()
        assert (stopped.value.code, captured.out) == (2, "")
        assert captured.err.startswith("error: method 'fedprox' averages weights")
        assert captured.err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


# pFedMe


def slow_moreau(
    client: Client, start: Tensor, batches: list[Records], inner_steps: int, strength: float, eta_p: float, eta: float
) -> tuple[Tensor, Tensor]:
    """theta and w as the paper writes them, with gradients of torch.func."""
    gradient = grad(lambda w, batch: functional.cross_entropy(forward(client, w, batch.x), batch.y))
    theta, w = start.clone(), start.clone()
    for batch in batches:
        for _ in range(inner_steps):
            theta = theta - eta_p * (gradient(theta, batch) + strength * (theta - w))
        w = w - strength * eta * (w - theta)
    return theta, w


def test_pfedme_is_the_papers_algorithm() -> None:
    sites = small_sites(1, models=("mlp",), batch_size=5)
    client = sites[0].client
    method = PFedMe(iterations=4, inner_steps=3, strength=4.0, personal_rate=0.05, rate=0.1)
    message = first_message(method, sites)
    update = method.client_update(method.client_init(client), client, message, 1, RNG)
    batches = list(steps(client.train, 4, 5, RNG.child("order").torch()))
    theta, w = slow_moreau(client, message.arrays["weights"], batches, 3, 4.0, 0.05, 0.1)
    torch.testing.assert_close(update.state.weights, theta, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(update.message.arrays["weights"], w, rtol=1e-4, atol=1e-6)
    assert update.info["apart"] == pytest.approx(float((theta - w).norm()), rel=1e-3)


def test_with_a_growing_pull_pfedme_is_gradient_descent_on_the_global_model() -> None:
    """theta - w -> - grad f / lambda, so w moves by - rate * grad f; what is missing falls as 1 / lambda."""
    site = small_sites(1, models=("mlp",), batch_size=5)[0]
    client, rate = site.client, 2e-3
    start = client.initial_weights()
    batches = list(steps(client.train, 30, 5, RNG.torch()))
    gradient = grad(lambda w, batch: functional.cross_entropy(forward(client, w, batch.x), batch.y))
    plain = start.clone()
    for batch in batches:
        plain = plain - rate * gradient(plain, batch)
    errors = []
    for strength in (25.0, 100.0, 400.0):
        _, w, _ = moreau(
            client.network,
            start,
            iter(batches),
            inner_steps=10,
            strength=strength,
            personal_rate=1 / strength,
            rate=rate,
        )
        errors.append(float((w - plain).norm() / (plain - start).norm()))
    assert errors[0] < 0.2
    assert errors[-1] < 0.02
    for more, less in itertools.pairwise(errors):
        assert 3 < more / less < 5, errors  # the pull grows four-fold


@pytest.mark.parametrize(("strength", "rate"), [(200.0, 0.005), (15.0, 0.1), (1.0, 1.0)])
def test_a_pull_that_overshoots_is_refused(strength: float, rate: float) -> None:
    changes = [f"methods.pfedme.strength={strength}", f"methods.pfedme.rate={rate}"]
    with pytest.raises(UserError) as caught:
        load_config(None, changes)
    text = str(caught.value)
    assert text.startswith("methods.pfedme")
    assert f"strength * rate must be below 1, it is {strength * rate:g}" in text
    assert "\n" not in text


def test_a_pull_just_below_that_is_allowed() -> None:
    assert load_config(None, ["methods.pfedme.strength=199.0"]).methods.pfedme.rate == 0.005


@pytest.mark.parametrize("method", [PFedMe(beta=0.25), PFedMe(beta=1.5), PFedMe()], ids=lambda m: str(m.beta))
def test_beta_is_how_far_the_server_moves(method: PFedMe, roster: Roster) -> None:
    old, replies = Global(torch.randn(9610, generator=RNG.torch())), replies_of(method, roster, (1, 2, 3, 4), 1)
    found = method.server_update(old, replies, roster, RNG).weights
    mean = sum((n * replies[c].arrays["weights"] for c, n in enumerate((1, 2, 3, 4))), torch.zeros(())) / 10
    torch.testing.assert_close(found, (1 - method.beta) * old.weights + method.beta * mean, rtol=1e-5, atol=1e-6)


def test_the_personal_model_of_pfedme_is_theta_and_the_global_one_the_servers() -> None:
    sites = small_sites(1, models=("mlp",))
    method, client = PFedMe(iterations=2), sites[0].client
    update = method.client_update(method.client_init(client), client, first_message(method, sites), 0, RNG)
    models = method.scored(update.state, client, Message({"weights": torch.ones(9610)}), RNG)
    assert list(models) == ["personal", "global"]
    assert torch.equal(models["personal"].weights, update.state.weights)
    assert not torch.equal(update.state.weights, update.message.arrays["weights"])
    assert torch.equal(models["global"].weights, torch.ones(9610))
