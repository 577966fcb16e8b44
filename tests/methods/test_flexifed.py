"""FlexiFed: which layers networks have in common, their means in closed form, and FedAvg as its limit."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.methods import FedAvg, FlexiFed, Local
from fedbnn.methods.flexifed import joined
from fedbnn.models.architectures import ModelSettings
from tests.federation_sample import small_sites, unequal

RNG = Stream((0, "test"))
CONV1, CONV2 = 16 * 9 + 16, 32 * 16 * 9 + 32  # of cnn2 and cnn3 on one channel


def roster(*models: ModelSettings) -> Roster:
    return dataclasses.replace(
        roster_of(small_sites(1)), names=tuple(f"client-{i}" for i in range(len(models))), models=models
    )


def mlp(*hidden: int) -> ModelSettings:
    return ModelSettings("mlp", options={"hidden": list(hidden)})


CNN2, CNN3, MLP = ModelSettings("cnn2"), ModelSettings("cnn3"), ModelSettings("mlp")
VGG = ModelSettings("vgg9", options={"width": 0.5})


@pytest.mark.parametrize(
    ("one", "other", "weights"),
    [
        (CNN2, CNN3, CONV1 + CONV2),
        (CNN2, VGG, CONV1),  # what follows is pooling in one and a rectifier in the other
        (CNN2, MLP, 0),
        (mlp(5), mlp(5, 3), 64 * 5 + 5),
        (mlp(5), mlp(6), 0),
        (mlp(5, 4), mlp(5, 4, 3), 64 * 5 + 5 + 5 * 4 + 4),
        (CNN2, CNN2, CONV1 + CONV2 + (32 * 2 * 2 + 1) * 24 + (24 + 1) * 10),
    ],
    ids=range(7),
)
def test_what_two_networks_have_in_common(one: ModelSettings, other: ModelSettings, weights: int) -> None:
    reach = FlexiFed().reach(roster(one, other))
    assert reach[0][1] == reach[1][0] == weights


def test_the_strategies_reach_as_far_as_the_paper_says() -> None:
    four = roster(mlp(5), mlp(5), mlp(5, 3), mlp(5, 3, 2))
    first, second = 64 * 5 + 5, 5 * 3 + 3
    small, middle = first + 5 * 10 + 10, first + second + 3 * 10 + 10
    whole = four.network(3).size
    assert FlexiFed().reach(four) == [
        [small, small, first, first],
        [small, small, first, first],
        [first, first, middle, first + second],
        [first, first, first + second, whole],
    ]
    assert FlexiFed(strategy="basic").reach(four) == [[first] * 4] * 4
    clustered = FlexiFed(strategy="clustered")
    assert clustered.reach(four)[0] == [small, small, first, first]
    assert clustered.reach(four)[2] == [first, first, middle, first]
    sent = [clustered.expected_upload(four, i)["weights"].shape for i in range(4)]  # type: ignore[union-attr]
    assert sent == [(small,), (small,), (first,), (first,)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 50)), min_size=1, max_size=5), st.integers(0, 99))
def test_every_weight_is_the_mean_over_those_who_reach_it(said: list[tuple[int, int]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(6, generator=generator)
    weights = {j: torch.randn(reach, generator=generator) for j, (reach, _) in enumerate(said)}
    total = sum(n for _, n in said)
    found = joined(
        old, {j: r for j, (r, _) in enumerate(said)}, weights, {j: n / total for j, (_, n) in enumerate(said)}
    )
    for k in range(6):
        here = [(weights[j][k], n) for j, (reach, n) in enumerate(said) if reach > k]
        wanted = sum((w * n for w, n in here), torch.zeros(())) / sum(n for _, n in here) if here else old[k]
        torch.testing.assert_close(found[k], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ["max", "clustered", "basic"])
def test_with_one_architecture_it_is_fedavg_bit_for_bit(strategy: str) -> None:
    sites = unequal(small_sites(3, models=("cnn2",), batch_size=5), (12, 7, 3))
    flexible, average = FlexiFed(strategy=strategy, learning_rate=2e-3), FedAvg(learning_rate=2e-3)  # type: ignore[arg-type]
    one, other = (Federation(m, sites, seed=2, participation=0.7) for m in (flexible, average))
    for _ in range(3):
        one.step(evaluate=False)
        other.step(evaluate=False)
    assert torch.equal(one.server.tensors()["weights"], other.server.tensors()["weights"])


def test_who_has_nothing_in_common_trains_alone_bit_for_bit() -> None:
    sites = small_sites(3, models=("cnn2", "mlp", "cnn3"), batch_size=5)
    one, other = (Federation(m, sites) for m in (FlexiFed(learning_rate=1e-3), Local(learning_rate=1e-3)))
    for _ in range(3):
        turns = one.step(evaluate=False).turns
        other.step(evaluate=False)
    assert torch.equal(one.predict(1, sites[1].evaluation.x).probs, other.predict(1, sites[1].evaluation.x).probs)
    assert not torch.equal(one.predict(0, sites[0].evaluation.x).probs, other.predict(0, sites[0].evaluation.x).probs)
    assert [turns[c].bytes_up > 1000 for c in range(3)] == [True, False, True]


def test_shared_layers_begin_alike_and_the_rest_stays_at_home() -> None:
    sites = small_sites(3, models=("cnn2", "cnn3"))
    method, roster_here = FlexiFed(), roster_of(sites)
    state = method.server_init(roster_here)
    shared = CONV1 + CONV2
    whole, part = (method.broadcast(state, i).arrays["weights"] for i in (0, 1))
    assert (len(whole), len(part)) == (roster_here.network(0).size, shared)
    assert torch.equal(whole[:shared], part)
    client = sites[1].client
    kept = method.client_init(client)
    got = method.scored(kept, client, Message({"weights": part}), RNG)["personal"].weights
    assert torch.equal(got[:shared], part)
    assert torch.equal(got[shared:], client.initial_weights()[shared:])
    replies = {
        i: Message({"weights": torch.full((n,), float(i + 1)), "records": torch.tensor([10.0 * (i + 1)])})
        for i, n in enumerate((len(whole), shared, len(whole)))
    }
    new = method.server_update(state, replies, roster_here, RNG)
    assert new.of(0)[:shared].allclose(torch.tensor((1 * 10 + 2 * 20 + 3 * 30) / 60))
    assert new.of(0)[shared:].allclose(torch.tensor((1 * 10 + 3 * 30) / 40))
    assert new.of(1).allclose(torch.tensor((1 * 10 + 2 * 20 + 3 * 30) / 60))
    away = method.server_update(state, {1: replies[1]}, roster_here, RNG)
    assert away.of(0)[:shared].allclose(torch.tensor(2.0))
    assert torch.equal(away.of(0)[shared:], whole[shared:])


def test_networks_without_anything_in_common_are_refused() -> None:
    with pytest.raises(UserError, match="but no two clients' do") as caught:
        FlexiFed().server_init(roster(MLP, CNN2))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="strategy = 'basic'"):
        FlexiFed(strategy="basic").server_init(roster(MLP, CNN2, CNN3))
    FlexiFed().server_init(roster(MLP, CNN2, CNN3))
