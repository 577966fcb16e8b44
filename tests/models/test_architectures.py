import math
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from fedbnn.base.errors import UserError
from fedbnn.models.architectures import MODELS, ModelSettings, assign, build, cnn2, cnn3, find_factory, mlp, vgg9


def weights(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_vgg9_has_the_papers_size():
    assert weights(vgg9((3, 32, 32), 10)) == 3_491_530


@pytest.mark.parametrize("model", [cnn2, cnn3])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_small_cnns_have_about_fifty_thousand_weights(model, shape):
    assert 40_000 < weights(model(shape, 10)) < 60_000


def test_mlp_counts():
    assert weights(mlp((1, 8, 8), 10)) == 64 * 128 + 128 + 128 * 10 + 10
    assert weights(mlp((7,), 3, hidden=[])) == 7 * 3 + 3
    assert weights(mlp((7,), 3, hidden=(5, 4))) == 7 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3


def test_vgg9_layers():
    kinds = [type(layer) for layer in vgg9((3, 32, 32), 10).modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear), kinds.count(nn.MaxPool2d)) == (6, 3, 3)


@pytest.mark.parametrize("width", [0.25, 0.5, 2.0])
def test_width_scales_every_layer_of_vgg9(width):
    full, scaled = (
        [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        for module in (vgg9((3, 8, 8), 10), vgg9((3, 8, 8), 10, width=width))
    )
    for before, after in zip(full[:-1], scaled[:-1], strict=True):
        assert after.weight.shape[0] == width * before.weight.shape[0]
    assert scaled[-1].weight.shape[0] == 10


def test_no_layer_of_a_narrow_vgg9_vanishes():
    module = vgg9((3, 8, 8), 4, width=0.001)
    assert all(parameter.numel() > 0 for parameter in module.parameters())
    assert module(torch.zeros(1, 3, 8, 8)).shape == (1, 4)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 3, 7, 9)])
def test_pooling_and_relu_commute(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    assert torch.equal(relu(pool(x)), pool(relu(x)))


@pytest.mark.parametrize(("name", "shape"), [("cnn2", (1, 8, 8)), ("cnn3", (3, 17, 9)), ("vgg9", (1, 8, 8))])
def test_relu_before_pooling_would_give_the_same_outputs(name, shape):
    module = build(ModelSettings(name), shape, 5)
    *layers, head = module
    swapped = list(layers)
    for at in range(len(layers) - 1):
        if isinstance(layers[at], nn.MaxPool2d):
            assert isinstance(layers[at + 1], nn.ReLU)
            swapped[at], swapped[at + 1] = layers[at + 1], layers[at]
    assert swapped != layers
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(nn.Sequential(*swapped, head)(x), module(x))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (2, 9, 15)])
@pytest.mark.parametrize("classes", [2, 7])
def test_one_logit_per_class(name, shape, classes):
    options = {"width": 0.1} if name == "vgg9" else {}
    module = build(ModelSettings(name, options=options), shape, classes)
    with torch.inference_mode():
        assert module(torch.zeros(3, *shape)).shape == (3, classes)


def test_mlp_takes_tables():
    assert mlp((11,), 4)(torch.zeros(2, 11)).shape == (2, 4)


@pytest.mark.parametrize(("name", "least"), [("cnn2", 4), ("cnn3", 8), ("vgg9", 8)])
def test_the_smallest_image(name, least):
    build(ModelSettings(name), (1, least, least), 2)
    for small in [(1, least - 1, least), (1, least, least - 1)]:
        with pytest.raises(UserError, match=f"'{name}' needs images of at least {least}x{least}, these are"):
            build(ModelSettings(name), small, 2)


@pytest.mark.parametrize("name", ["cnn2", "cnn3", "vgg9"])
@pytest.mark.parametrize("shape", [(12,), (8, 8)])
def test_tables_are_refused_by_cnns(name, shape):
    with pytest.raises(UserError, match=f"'{name}' needs images"):
        build(ModelSettings(name), shape, 2)


@pytest.mark.parametrize(
    ("name", "listed"),
    [("mlp", "hidden"), ("cnn2", "channels, hidden"), ("cnn3", "channels, hidden"), ("vgg9", "width")],
)
def test_a_wrong_option_lists_the_options(name, listed):
    with pytest.raises(UserError, match=f"'{name}': .*'depth'; its options are {listed}$"):
        build(ModelSettings(name, options={"depth": 3}), (1, 8, 8), 2)


def test_options_are_used():
    module = build(ModelSettings("mlp", options={"hidden": [3]}), (5,), 2)
    assert [layer.weight.shape for layer in module if isinstance(layer, nn.Linear)] == [(3, 5), (2, 3)]


@pytest.mark.parametrize(("name", "options"), [("mlp", {"hidden": 5}), ("vgg9", {"width": "wide"})])
def test_an_option_of_the_wrong_type(name, options):
    with pytest.raises(UserError, match=f"'{name}'"):
        build(ModelSettings(name, options=options), (1, 8, 8), 2)


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(
        UserError, match=r"unknown model 'cnn4'; did you mean 'cnn3'\? \(there are mlp, cnn2, cnn3, vgg9"
    ):
        find_factory("cnn4")
    with pytest.raises(UserError, match=r"unknown model 'resnet' \(there are"):
        find_factory("resnet")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, which tests may fill."""
    (tmp_path / "own_models_here.py").write_text(
        "from torch import nn\n"
        "def linear(input_shape, classes, bias=True):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], classes, bias=bias))\n"
        "def nothing(input_shape, classes):\n"
        "    return None\n"
        "number = 5\n"
    )
    (tmp_path / "own_models_broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_models_here"
    for name in ("own_models_here", "own_models_broken"):
        sys.modules.pop(name, None)


def test_an_own_factory(own):
    module = build(ModelSettings(f"{own}:linear", options={"bias": False}), (6,), 3)
    assert weights(module) == 18


def test_an_own_factory_with_a_wrong_option(own):
    with pytest.raises(UserError, match=r"'hidden'; its options are bias$"):
        build(ModelSettings(f"{own}:linear", options={"hidden": 2}), (6,), 3)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_package.models:make", "cannot be imported: No module named 'no_such_package'"),
        ("own_models_here:missing", "cannot be imported: .*no attribute 'missing'"),
        ("own_models_broken:make", "cannot be imported: No module named 'a_package_that_is_not_there'"),
        ("own_models_here:number", "is a int, not a function"),
        ("own_models_here:nothing", "returned a NoneType, not a torch.nn.Module"),
    ],
)
def test_an_own_factory_that_cannot_be_used(own, name, why):
    with pytest.raises(UserError, match=f"model '{name}' {why}"):
        build(ModelSettings(name), (6,), 3)


@pytest.mark.parametrize("name", [":make", "builtins:dict"])
def test_a_name_that_python_cannot_look_into(name):
    with pytest.raises(UserError):
        build(ModelSettings(name), (6,), 3)


def named(shares):
    return tuple(ModelSettings(f"m{k}:f", share) for k, share in enumerate(shares))


def assert_fair(models, dealt):
    """No model is a whole client away from its share in any prefix."""
    total = math.fsum(model.share for model in models)
    for length in range(1, len(dealt) + 1):
        for model in models:
            assert abs(dealt[:length].count(model) - model.share / total * length) < 1 + 1e-6, length


@example([1, 1, 1, 11, 11], 16)
@given(st.lists(st.floats(0.01, 100) | st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 60))
def test_every_prefix_has_the_models_in_their_shares(shares, clients):
    models = named(shares)
    dealt = assign(models, clients)
    assert len(dealt) == clients
    assert_fair(models, dealt)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(0, 60), st.integers(0, 60))
def test_more_clients_change_nothing_for_the_first(shares, clients, more):
    models = named(shares)
    assert assign(models, clients + more)[:clients] == assign(models, clients)


def test_equal_shares_take_turns():
    a, b, c = named([1, 1, 1])
    assert assign((a, b, c), 7) == [a, b, c, a, b, c, a]


def test_shares_are_relative():
    whole, tenths = ([model.name for model in assign(named(shares), 9)] for shares in ([2, 1], [0.2, 0.1]))
    assert whole == tenths
    assert whole.count("m0:f") == 6
