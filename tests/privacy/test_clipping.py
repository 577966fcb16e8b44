import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.network import FlatNetwork
from fedbnn.privacy import clipped_sum, clipping, poisson_batch
from fedbnn.privacy import record_gradients as gradients

SHAPE = (1, 8, 8)
CLASSES = 10


class Residual(nn.Module):
    """Not a stack of layers: only vmap can differentiate it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 64, CLASSES)

    def forward(self, x):
        hidden = self.first(x)
        return self.head((hidden + self.norm(self.second(hidden)).relu()).flatten(1))


def strided():
    head = nn.Linear(6 * 3 * 3, CLASSES, bias=False)
    return nn.Sequential(nn.Conv2d(1, 6, (2, 3), stride=(3, 2), padding=(1, 0), bias=False), nn.Flatten(), head)


def tied():
    layer = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(64, CLASSES))


class Shared(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.first(x.flatten(1)).relu()))


def frozen():
    module = build(ModelSettings("cnn2"), SHAPE, CLASSES)
    next(module.parameters()).requires_grad_(False)
    return module


def overwriting():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 36, CLASSES))


def rows_of_images():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32, CLASSES))


OWN = {
    "residual": Residual,
    "strided": strided,
    "tied": tied,
    "shared": Shared,
    "frozen": frozen,
    "overwriting": overwriting,
    "rows": rows_of_images,
}
STACKS = ["mlp", "cnn2", "cnn3", "strided"]


def network(name, seed=3):
    return FlatNetwork(OWN.get(name, lambda: build(ModelSettings(name), SHAPE, CLASSES)), seed)


def batch(count=7, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(count, *SHAPE, generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def one_by_one(net, x, y):
    """Each record's gradient by an ordinary backward pass of a batch of one."""
    rows = []
    for record, label in zip(x, y, strict=True):
        net.gradient.zero_()
        functional.cross_entropy(net(record.unsqueeze(0)), label.unsqueeze(0)).backward()
        rows.append(net.gradient.clone())
    net.gradient.zero_()
    return torch.stack(rows).double()


@pytest.mark.parametrize("name", ["mlp", "cnn2", "cnn3", *OWN])
def test_a_batch_of_one_that_is_not_clipped_is_the_networks_gradient(name):
    net = network(name)
    x, y = batch(1)
    total, norms = clipped_sum(net, x, y, clip=1e6)
    expected = one_by_one(net, x, y)[0].float()
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norms[0], expected.norm(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["mlp", "cnn2", "cnn3", *OWN])
def test_the_sum_is_the_loops(name, layout):
    net = network(name)
    x, y = batch()
    rows = one_by_one(net, x, y)
    norms = rows.norm(dim=1)
    clip = float(norms.median())  # some are clipped, some are not
    expected = (rows * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)
    total, found = clipped_sum(net, x.contiguous(memory_format=layout), y, clip)
    torch.testing.assert_close(total.double(), expected, rtol=1e-3, atol=2e-5 * clip)
    torch.testing.assert_close(found.double(), norms, rtol=1e-5, atol=0)
    assert not net.gradient.any()


@pytest.mark.parametrize("name", ["mlp", "cnn2", "cnn3", *OWN])
def test_the_network_is_left_as_it_was(name):
    net = network(name)
    before = [(p, p.data_ptr()) for p in net.module.parameters()]
    weights = net.weights.clone()
    clipped_sum(net, *batch(), 1.0)
    for parameter, (same, place) in zip(net.module.parameters(), before, strict=True):
        assert parameter is same
        assert parameter.data_ptr() == place
    assert torch.equal(net.weights, weights)
    assert not net.gradient.any()


@pytest.mark.parametrize("name", STACKS)
def test_both_ways_to_the_gradients_agree(name):
    net = network(name)
    x, y = batch()
    layers = gradients.plain_layers(net)
    assert layers is not None
    rows = []
    for pieces in (gradients.by_layers(layers, x, y), gradients.by_vmap(net, x, y)):
        total = torch.zeros(net.size)
        weights = torch.arange(1.0, 8.0)
        offset = 0
        for piece in pieces:
            piece.add_weighted(weights, total[offset : offset + piece.width])
            offset += piece.width
        assert offset == net.size
        rows.append(total)
    torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["residual", "tied", "shared", "frozen", "overwriting"])
def test_only_plain_stacks_take_the_short_way(name):
    assert gradients.plain_layers(network(name)) is None


def test_a_hook_or_a_subclass_is_not_plain():
    hooked = network("mlp")
    hooked.module.register_forward_hook(lambda module, args, output: output - output.mean(0))
    assert gradients.plain_layers(hooked) is None

    class Centred(nn.ReLU):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    mixing = FlatNetwork(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Centred(), nn.Linear(8, CLASSES)), 0)
    assert gradients.plain_layers(mixing) is None


def test_probabilities_as_labels():
    net = network("cnn2")
    x, _ = batch()
    y = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(1)
    expected = one_by_one(net, x, y).sum(0).float()
    torch.testing.assert_close(clipped_sum(net, x, y, 1e6)[0], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["cnn2", "residual"])
def test_parts_of_a_batch_add_up(name, monkeypatch):
    net = network(name)
    x, y = batch(11)
    whole = clipped_sum(net, x, y, 0.5)
    monkeypatch.setattr(clipping, "_MOST_NUMBERS", 4 * net.size)
    for one, other in zip(whole, clipped_sum(net, x, y, 0.5), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn3", "residual"])
def test_an_empty_batch_gives_zeros(name):
    net = network(name)
    total, norms = clipped_sum(net, torch.empty(0, *SHAPE), torch.empty(0, dtype=torch.long), 1.0)
    assert torch.equal(total, torch.zeros(net.size))
    assert norms.shape == (0,)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["mlp", "cnn2", "residual"]),
    st.floats(-20, 37).map(lambda power: 10.0**power),
    st.floats(-6, 6).map(lambda power: 10.0**power),
    st.integers(0, 1000),
)
def test_no_contribution_is_longer_than_the_clip(name, scale, clip, seed):
    x, y = batch(1, scale, seed)
    total, _ = clipped_sum(network(name, seed), x, y, clip)
    assert total.isfinite().all()
    assert total.double().norm() <= clip


@pytest.mark.parametrize("name", ["mlp", "cnn2", "residual"])
def test_a_clipped_contribution_is_as_long_as_the_clip(name):
    x, y = batch(1, scale=1e3)
    assert clipped_sum(network(name), x, y, 0.1)[0].norm() == pytest.approx(0.1, rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["mlp", "cnn2", "cnn3", "residual"]),
    st.floats(-3, 38).map(lambda power: 10.0**power),
    st.integers(0, 1000),
    st.integers(0, 5),
)
def test_a_record_less_moves_the_sum_by_at_most_the_clip(name, scale, seed, removed):
    net = network(name, seed)
    x, y = batch(6, seed=seed)
    x[removed] *= scale
    kept = torch.arange(6) != removed
    with_record, _ = clipped_sum(net, x, y, 0.3)
    without, _ = clipped_sum(net, x[kept], y[kept], 0.3)
    assert (with_record.double() - without.double()).norm() <= 0.3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["mlp", "cnn2", "cnn3", "residual"])
def test_a_broken_record_contributes_zero(name, value):
    net = network(name)
    x, y = batch(6)
    x[2, 0, 3, 3] = value
    kept = torch.arange(6) != 2
    total, norms = clipped_sum(net, x, y, 0.3)
    without, _ = clipped_sum(net, x[kept], y[kept], 0.3)
    torch.testing.assert_close(total, without, rtol=1e-4, atol=1e-7)
    assert norms[2] == math.inf
    assert norms[kept].isfinite().all()


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_nothing_but_broken_records(name):
    net = network(name)
    total, _ = clipped_sum(net, torch.full((3, *SHAPE), math.nan), torch.zeros(3, dtype=torch.long), 1.0)
    assert torch.equal(total, torch.zeros(net.size))


def dropping(wrap):
    return lambda: wrap(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, CLASSES)))


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("wrap", [lambda module: module, Wrapped], ids=["stack", "vmap"])
def test_dropout_draws_for_each_record_and_stops_in_evaluation(wrap):
    net = FlatNetwork(dropping(wrap), 0)
    x, y = batch(1)
    x, y = x.expand(8, *SHAPE).contiguous(), y.expand(8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        total, norms = clipped_sum(net, x, y, 0.1)
    assert norms.unique().numel() == 8
    assert total.norm() <= 0.8
    net.module.eval()
    _, norms = clipped_sum(net, x, y, 0.1)
    torch.testing.assert_close(norms, norms[:1].expand(8))


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_no_clip_is_refused(clip):
    with pytest.raises(ValueError, match=f"clip is {clip}: must be"):
        clipped_sum(network("mlp"), *batch(), clip)


# Poisson sampling


def test_every_record_is_drawn_independently_at_the_rate():
    n, rate, draws = 400, 0.2, 2000
    generator = torch.Generator().manual_seed(0)
    drawn = torch.zeros(draws, n)
    for row in drawn:
        row[poisson_batch(n, rate, generator)] = 1
    frequency = drawn.mean(0)
    error = math.sqrt(rate * (1 - rate) / draws)
    assert (frequency - rate).abs().max() < 5 * error
    assert frequency.std() == pytest.approx(error, rel=0.15)
    sizes = drawn.sum(1)
    variance = n * rate * (1 - rate)
    assert sizes.mean() == pytest.approx(n * rate, abs=5 * math.sqrt(variance / draws))
    assert sizes.var() == pytest.approx(variance, rel=5 * math.sqrt(2 / draws))
    one, other = drawn[:, 0] - rate, drawn[:, 1] - rate
    assert (one * other).mean().abs() < 5 * rate * (1 - rate) / math.sqrt(draws)


def test_the_systems_batches():
    n, rate = 200_000, 0.3
    index = poisson_batch(n, rate)
    assert abs(len(index) - n * rate) < 6 * math.sqrt(n * rate * (1 - rate))
    torch.manual_seed(0)
    again = poisson_batch(n, rate)
    torch.manual_seed(0)
    assert not torch.equal(again, poisson_batch(n, rate))


def test_batches_of_all_and_of_none():
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(poisson_batch(5, 1.0, generator), torch.arange(5))
    assert poisson_batch(5, 1e-9, generator).shape == (0,)
    assert poisson_batch(0, 0.5, generator).shape == (0,)
    assert torch.equal(
        poisson_batch(99, 0.5, torch.Generator().manual_seed(1)),
        poisson_batch(99, 0.5, torch.Generator().manual_seed(1)),
    )


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(ValueError, match=f"rate is {rate}: must be"):
        poisson_batch(5, rate, torch.Generator())
