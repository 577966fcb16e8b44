"""FedBN: normalisation layers never leave, all else is FedAvg, and models without such layers are refused."""

import pytest
import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.methods import FedAvg, FedBN
from fedbnn.methods.fedbn import shared_places
from fedbnn.methods.point import Point
from fedbnn.models.architectures import MODELS, ModelSettings, build
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import TrainingSettings
from tests.federation_sample import first_message, small_sites, unequal, with_client
from tests.regression_sample import NOISE, linear_sites

RNG = Stream((0, "fedbn"))
SITES = unequal(small_sites(3, models=("transformer",), batch_size=5), (12, 7, 3))
CLIENT = SITES[0].client
SHARED = shared_places(CLIENT.network)


def small(name: str) -> FlatNetwork:
    options = {"width": 0.1} if name == "vgg9" else {}
    return FlatNetwork(lambda: build(ModelSettings(name, options=options), (1, 8, 8), 4), 0)


@pytest.mark.parametrize("name", MODELS)
def test_of_the_built_in_models_the_transformer_has_such_layers(name: str) -> None:
    """Two in its one layer, each with a scale and a shift for each of 32 values: these start at one and at zero."""
    network = small(name)
    shared = shared_places(network)
    own = network.weights[~shared]
    assert len(own) == (2 * 2 * 32 if name == "transformer" else 0)
    assert sorted(set(own.tolist())) == ([0.0, 1.0] if len(own) else [])


@pytest.mark.parametrize(
    "layer",
    [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.RMSNorm(4), nn.BatchNorm1d(4, track_running_stats=False)],
    ids=lambda layer: type(layer).__name__,
)
def test_every_kind_of_normalisation_layer_is_found_wherever_it_stands(layer: nn.Module) -> None:
    network = FlatNetwork(lambda: nn.Sequential(nn.Linear(3, 4), nn.Sequential(layer, nn.ReLU()), nn.Linear(4, 2)), 0)
    shared = shared_places(network)
    own = [name for name, span in network.spans.items() if not bool(shared[span].any())]
    assert own == [f"1.0.{name}" for name, _ in layer.named_parameters()]
    assert int((~shared).sum()) == sum(p.numel() for p in layer.parameters())


def test_the_layers_scale_and_shift_what_is_normalised() -> None:
    """Another scale in their place alone gives other answers where all of them are what the mask leaves out."""
    network = small("transformer")
    network.module.eval()
    x = torch.rand(3, 1, 8, 8)
    before = network(x).detach().clone()
    norms = [one for one in network.module.modules() if isinstance(one, nn.LayerNorm)]
    network.weights[~shared_places(network)] = 0.0
    assert all(not bool(p.any()) for norm in norms for p in norm.parameters())
    assert not torch.allclose(network(x).detach(), before)


class NothingOwn(FedBN):
    """With no normalisation layer that stays at home."""

    name = "nothing_own"

    def shared(self, network: FlatNetwork) -> Tensor:
        return torch.ones(network.size, dtype=torch.bool)

    def server_init(self, roster):  # type: ignore[no-untyped-def]
        return super(FedBN, self).server_init(roster)


def test_with_nothing_of_its_own_it_is_fedavg_bit_for_bit() -> None:
    servers, scores = [], []
    for method, name in ((NothingOwn(weight_decay=0.1), "personal"), (FedAvg(weight_decay=0.1), "global")):
        federation = Federation(method, SITES, seed=2, participation=0.7)
        record = federation.run(2)[-1]
        servers.append(federation.server.tensors()["weights"])
        scores.append([found[name].to_dict()["scores"] for found in record.scores.values()])  # type: ignore[index]
    assert torch.equal(*servers)
    assert scores[0] == scores[1]


def test_own_layers_stay_are_trained_and_are_nobody_elses() -> None:
    method = FedBN(learning_rate=3e-3)
    state, message = method.client_init(CLIENT), first_message(method, SITES)
    sent = message.arrays["weights"]
    assert len(sent) == int(SHARED.sum())
    own = state.weights + torch.where(SHARED, 5.0, 0.3)
    start = method.merged(Point(own), CLIENT, message)
    assert torch.equal(start[SHARED], sent)
    assert torch.equal(start[~SHARED], own[~SHARED])
    update = method.client_update(Point(own), CLIENT, message, 1, RNG)
    expected, _ = method.train(start, CLIENT, 1, RNG)
    assert torch.equal(update.state.weights, expected)
    assert torch.equal(update.message.arrays["weights"], expected[SHARED])
    moved = expected - start
    assert float(moved[~SHARED].norm()) == pytest.approx(update.info["own_drift"], rel=1e-5)
    assert float(moved[SHARED].norm()) == pytest.approx(update.info["drift"], rel=1e-5)
    assert update.info["own_drift"] > 0


def test_the_personal_model_is_what_is_newest_around_the_own_layers() -> None:
    method = FedBN()
    message = first_message(method, SITES)
    state = method.client_update(method.client_init(CLIENT), CLIENT, message, 0, RNG).state
    newest = Message({"weights": message.arrays["weights"] * 1.1})
    scored = method.scored(state, CLIENT, newest, RNG)
    assert list(scored) == ["personal", "fine_tuned"]
    assert torch.equal(scored["personal"].weights[SHARED], newest.arrays["weights"])
    assert torch.equal(scored["personal"].weights[~SHARED], state.weights[~SHARED])
    assert scored["fine_tuned"] is state


def test_clients_whose_inputs_are_of_another_scale_keep_layers_that_differ() -> None:
    model = ModelSettings("tests.federation_sample:normalised")
    sites = [with_client(site, model=model) for site in small_sites(3, models=("mlp",))]
    federation = Federation(FedBN(learning_rate=5e-3), sites)
    federation.run(2)
    shared = shared_places(sites[0].client.network)
    assert int((~shared).sum()) == 2 * 8 * 8
    states = [federation.engine._host.states[c].weights[~shared] for c in range(3)]  # type: ignore[attr-defined]
    assert all((states[i] - states[j]).abs().max() > 1e-3 for i in range(3) for j in range(i))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (ModelSettings("cnn2"), "model 'cnn2' has none that are trained: choose the transformer or"),
        (ModelSettings("transformer", bayesian="last_layer"), "model 'transformer' has none that are trained"),
        (
            ModelSettings("tests.federation_sample:normalised", options={"only": True}),
            "model 'tests.federation_sample:normalised' trains nothing else",
        ),
    ],
    ids=["none", "frozen", "nothing else"],
)
def test_a_model_that_has_nothing_to_keep_or_nothing_to_share_is_refused(model: ModelSettings, why: str) -> None:
    roster = roster_of([with_client(site, model=model) for site in SITES])
    with pytest.raises(UserError) as caught:
        FedBN().server_init(roster)
    assert str(caught.value).startswith("method 'fedbn' leaves normalisation layers at the clients")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_learns_real_numbers() -> None:
    """A line through noise: better than the mean of all, whose error is one standard deviation."""
    model = ModelSettings("transformer", options={"width": 8, "heads": 2})
    training = TrainingSettings(local_epochs=10, warmup_epochs=20, batch_size=16)
    sites = linear_sites(model=model, training=training)
    record = Federation(FedBN(learning_rate=5e-3), sites).run(3)[-1]
    errors = [found["personal"].scores["rmse"] for found in record.scores.values()]
    assert sum(errors) / 3 < 0.9 * (30**2 + 15**2 + NOISE**2) ** 0.5
