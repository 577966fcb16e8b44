"""FedMA: permuted copies are matched back exactly, the matching is the best there is, and FedAvg is a limit."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.methods import FedAvg, FedMA
from fedbnn.methods.fedma import layers_of, matched
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.bayes import logits_of
from tests.federation_sample import small_sites
from tests.plain_torch import pieces

RNG = Stream((0, "fedma"))
MODELS = (
    ModelSettings("mlp", options={"hidden": [7, 5]}),
    ModelSettings("cnn2", options={"channels": [4, 6], "hidden": 5}),
    ModelSettings("vgg9", options={"width": 0.1}),
    ModelSettings("tests.methods.test_fedma:without_biases"),
)


def without_biases(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3, bias=False),
        nn.Tanh(),
        nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 5, bias=False), nn.GELU()),
        nn.Linear(5, classes, bias=False),
    )


def of_wrong_order(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A linear layer on the last of three dimensions: flattened, its neurons do not lie together."""
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32, classes))


def in_groups(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, classes)
    )


def normalised(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.LayerNorm(4), nn.Linear(4, classes))


def roster_with(model: ModelSettings, clients: int = 3) -> Roster:
    roster = roster_of(small_sites(clients, models=("mlp",)))
    return dataclasses.replace(roster, models=(model,) * clients)


def shuffled(weights: Tensor, roster: Roster, seed: int) -> Tensor:
    """The same function, its hidden neurons in another order; written on the tensors of torch's own layout."""
    module, generator = roster.network(0).module, torch.Generator().manual_seed(seed)
    parts = pieces(weights, module)
    matrices = [k for k, part in enumerate(parts) if part.dim() > 1]
    for k, following in itertools.pairwise(matrices):
        order = torch.randperm(len(parts[k]), generator=generator)
        for own in range(k, following):  # weights, and the bias if there is one
            parts[own] = parts[own][order]
        later = parts[following]
        places = later.shape[1] // len(order)  # of each channel, where a convolution was flattened
        columns = torch.cat([torch.arange(places) + places * int(unit) for unit in order])
        parts[following] = later[:, columns]
    vector = torch.empty_like(weights)
    for part, span in zip(parts, roster.network(0).spans.values(), strict=True):
        stored = part.permute(0, 2, 3, 1) if part.dim() == 4 else part  # channels-last, as flat vectors are
        vector[span] = stored.flatten()
    return vector


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_permuted_copy_is_matched_back_exactly(model: ModelSettings, seed: int) -> None:
    roster = roster_with(model)
    weights = roster.initial_weights(0)
    copy = shuffled(weights, roster, seed)
    assert not torch.equal(copy, weights)
    one, other = (logits_of(roster.network(0), w, roster.alignment).clone() for w in (weights, copy))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # it is the same function
    assert torch.equal(matched(copy, weights, layers_of(roster)), weights)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_the_matching_is_the_best_of_all_permutations(seed: int) -> None:
    """Of two networks that have nothing to do with each other, layer by layer."""
    roster = roster_with(ModelSettings("mlp", options={"hidden": [5, 4]}))
    normal = torch.Generator().manual_seed(seed)
    own, reference = (torch.randn(len(roster.initial_weights(0)), generator=normal) for _ in range(2))
    module = roster.network(0).module
    w1, b1, w2, b2, w3, b3 = pieces(own, module)
    v1, c1, v2, c2, _, _ = pieces(reference, module)

    def best(w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> list[int]:
        orders = [list(order) for order in itertools.permutations(range(len(w)))]
        return min(orders, key=lambda o: float(((w[o] - v) ** 2).sum() + ((b[o] - c) ** 2).sum()))

    first = best(w1, b1, v1, c1)
    second = best(w2[:, first], b2, v2, c2)
    expected = (w1[first], b1[first], w2[second][:, first], b2[second], w3[:, second], b3)
    found = pieces(matched(own, reference, layers_of(roster)), module)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10)
def test_whatever_the_order_the_function_stays(seed: int) -> None:
    for model in MODELS[:2]:
        roster = roster_with(model)
        weights = roster.initial_weights(0)
        reference = torch.randn(len(weights), generator=torch.Generator().manual_seed(seed))
        found = matched(weights, reference, layers_of(roster))
        one, other = (logits_of(roster.network(0), w, roster.alignment).clone() for w in (weights, found))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def replies(weights: list[Tensor]) -> dict[int, Message]:
    return {i: Message({"weights": w, "records": torch.tensor([1.0 + i])}) for i, w in enumerate(weights)}


@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("model", MODELS[:2], ids=lambda m: m.name)
def test_permuted_copies_are_averaged_to_themselves_whatever_the_server_had(model: ModelSettings, sweeps: int) -> None:
    roster, method = roster_with(model), FedMA(sweeps=sweeps)
    trained = roster.initial_weights(1)
    sent = replies([shuffled(trained, roster, seed) for seed in range(3)])
    state = method.server_update(method.server_init(roster), sent, roster, RNG)
    found, wanted, plain = (
        logits_of(roster.network(0), w, roster.alignment).clone()
        for w in (state.weights, trained, FedAvg().server_update(state, sent, roster, RNG).weights)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(plain, wanted, atol=1e-2)


def test_clients_that_stayed_near_are_averaged_as_in_fedavg_bit_for_bit() -> None:
    roster, normal = roster_with(MODELS[1]), torch.Generator().manual_seed(0)
    state = FedMA().server_init(roster)
    sent = replies([state.weights + 1e-3 * torch.randn(state.weights.shape, generator=normal) for _ in range(3)])
    found, expected = (method.server_update(state, sent, roster, RNG) for method in (FedMA(), FedAvg()))
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(FedMA().server_update(state, {}, roster, RNG).weights, state.weights)


def test_more_sweeps_bring_clients_nearer_to_their_average() -> None:
    """Of one hidden layer each, where a sweep is a step of coordinate descent over neurons' weights and bias. The
    clients are disturbed copies of a network that the server has never seen."""
    roster, normal = roster_with(ModelSettings("mlp", options={"hidden": [30]}), 5), torch.Generator().manual_seed(3)
    layers, start = layers_of(roster), FedMA().server_init(roster)
    sent = {}
    for i in range(5):
        disturbed = roster.initial_weights(1) + 0.07 * torch.randn(start.weights.shape, generator=normal)
        sent[i] = Message({"weights": shuffled(disturbed, roster, i), "records": torch.ones(1)})
    spreads = []
    for sweeps in (1, 2, 3, 8):
        average = FedMA(sweeps=sweeps).server_update(start, sent, roster, RNG).weights
        near = [matched(reply.arrays["weights"], average, layers) for reply in sent.values()]
        spreads.append(sum(float((layers[0].neurons(one) - layers[0].neurons(average)).square().sum()) for one in near))
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 0.9 * spreads[0]


@pytest.mark.parametrize("common", [True, False])
def test_the_warm_up_begins_in_common_or_at_weights_of_its_own(common: bool) -> None:
    sites = small_sites(2, models=("mlp",))
    method, client = FedMA(common_start=common), sites[1].client
    message = method.broadcast(method.server_init(roster_of(sites)), 1)
    for number, begins_at_the_servers in ((0, common), (1, True)):
        update = method.client_update(method.client_init(client), client, message, number, RNG)
        start = message.arrays["weights"] if begins_at_the_servers else client.initial_weights()
        expected = FedAvg().client_update(
            FedAvg().client_init(client), client, Message({"weights": start}), number, RNG
        )
        assert torch.equal(update.message.arrays["weights"], expected.message.arrays["weights"])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (ModelSettings("gru"), "has a Recurrent there"),
        (ModelSettings("transformer"), "has a Attentive there"),
        (ModelSettings("tests.methods.test_fedma:of_wrong_order"), "has a Linear there"),
        (ModelSettings("tests.methods.test_fedma:in_groups"), "has a Conv2d there"),
        (ModelSettings("tests.methods.test_fedma:normalised"), "has a LayerNorm there"),
        (ModelSettings("mlp", bayesian="last_layer"), "but 'mlp' does not train '1'"),
    ],
    ids=lambda value: value.architecture if isinstance(value, ModelSettings) else "",
)
def test_networks_whose_neurons_cannot_be_matched_are_refused(model: ModelSettings, reason: str) -> None:
    with pytest.raises(UserError, match="method 'fedma' matches neurons of") as caught:
        FedMA().server_init(roster_with(model))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
