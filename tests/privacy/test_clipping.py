import math
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.network import FlatNetwork
from fedbnn.privacy import clipped_grid_sum, clipping, poisson_batch
from fedbnn.privacy.sums import LARGEST, UNIT

SHAPE = (1, 8, 8)
CLASSES = 10


class Residual(nn.Module):
    """Not a stack of layers."""

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
ALL = ["mlp", "cnn2", "cnn3", *OWN]


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


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_one_that_is_not_clipped_is_the_networks_gradient(name):
    net = network(name)
    x, y = batch(1)
    total, norms = clipped_grid_sum(net, x, y, clip=1e6)
    expected = one_by_one(net, x, y)[0]
    assert total.dtype == torch.int64
    torch.testing.assert_close(total.double() * UNIT, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norms[0], expected.norm(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ALL)
def test_the_sum_is_the_loops(name, layout):
    net = network(name)
    x, y = batch()
    rows = one_by_one(net, x, y)
    norms = rows.norm(dim=1)
    clip = float(norms.median())  # some are clipped, some are not
    expected = (rows * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)
    total, found = clipped_grid_sum(net, x.contiguous(memory_format=layout), y, clip)
    torch.testing.assert_close(total.double() * UNIT, expected, rtol=1e-3, atol=2e-5 * clip)
    torch.testing.assert_close(found, norms, rtol=1e-5, atol=0)
    assert not net.gradient.any()


@pytest.mark.parametrize("name", ALL)
def test_the_network_is_left_as_it_was(name):
    net = network(name)
    before = [(p, p.data_ptr()) for p in net.module.parameters()]
    weights = net.weights.clone()
    clipped_grid_sum(net, *batch(), 1.0)
    for parameter, (same, place) in zip(net.module.parameters(), before, strict=True):
        assert parameter is same
        assert parameter.data_ptr() == place
    assert torch.equal(net.weights, weights)
    assert not net.gradient.any()


def test_probabilities_as_labels():
    net = network("cnn2")
    x, _ = batch()
    y = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(1)
    expected = one_by_one(net, x, y).sum(0)
    torch.testing.assert_close(clipped_grid_sum(net, x, y, 1e6)[0].double() * UNIT, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn3", "residual"])
def test_an_empty_batch_gives_zeros(name):
    net = network(name)
    total, norms = clipped_grid_sum(net, torch.empty(0, *SHAPE), torch.empty(0, dtype=torch.long), 1.0)
    assert torch.equal(total, torch.zeros(net.size, dtype=torch.int64))
    assert norms.shape == (0,)


@pytest.mark.parametrize("name", ["cnn2", "residual"])
def test_pieces_give_the_same_bits(name, monkeypatch):
    whole = clipped_grid_sum(network(name), *batch(), 0.5)
    monkeypatch.setattr(clipping, "_PIECE", 7)
    for one, other in zip(whole, clipped_grid_sum(network(name), *batch(), 0.5), strict=True):
        assert torch.equal(one, other)


# What a record can move


def within(difference, clip):
    """Whether whole numbers are no longer than the clip, in exact arithmetic."""
    return sum(n * n for n in difference.tolist()) <= (Fraction(clip) * 2**32) ** 2


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["mlp", "cnn2", "residual"]),
    st.floats(-20, 37).map(lambda power: 10.0**power),
    st.floats(-6, 6).map(lambda power: 10.0**power),
    st.integers(0, 1000),
)
def test_no_contribution_is_longer_than_the_clip(name, scale, clip, seed):
    total, _ = clipped_grid_sum(network(name, seed), *batch(1, scale, seed), clip)
    assert within(total, clip)


@pytest.mark.parametrize("name", ["mlp", "cnn2", "residual"])
def test_a_clipped_contribution_is_as_long_as_the_clip(name):
    total, _ = clipped_grid_sum(network(name), *batch(1, scale=1e3), 0.1)
    assert total.double().norm() * UNIT == pytest.approx(0.1, rel=1e-6)


def hostile(name, x):
    """Weights from a server that wants the last bits: the last layer is huge, and blind to the first five records, so
    that what rounding leaves of them decides their gradients.
    """
    net = network(name)
    *_, last = [layer for layer in net.module.modules() if isinstance(layer, nn.Linear)]
    inputs = []
    hook = last.register_forward_hook(lambda module, args, output: inputs.append(args[0].detach()))
    with torch.no_grad():
        net(x[:5])
    hook.remove()
    alike = torch.linalg.qr(inputs[0].double().T)[0]
    with torch.no_grad():
        rows = torch.randn(last.weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        last.weight.copy_(1e7 * (rows - rows @ alike @ alike.T))
        last.bias.zero_()
    return net


@pytest.mark.parametrize("name", ["mlp", "cnn2", "residual"])
@pytest.mark.parametrize("clip", [0.3, 1e4])
def test_others_do_not_change_what_a_record_contributes(name, clip):
    """However many there are, and in any order, also at weights that make the last bits the largest ones."""
    x, y = batch(24)
    net = hostile(name, x)
    own = [clipped_grid_sum(net, x[i : i + 1], y[i : i + 1], clip) for i in range(24)]
    for count in range(1, 25):
        total, norms = clipped_grid_sum(net, x[:count], y[:count], clip)
        assert torch.equal(total, sum(one for one, _ in own[:count]))
        assert torch.equal(norms, torch.cat([norm for _, norm in own[:count]]))
        assert within(own[count - 1][0], clip)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    assert torch.equal(clipped_grid_sum(net, x[order], y[order], clip)[0], total)
    assert torch.equal(clipped_grid_sum(net, x.contiguous(memory_format=torch.channels_last), y, clip)[0], total)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["mlp", "cnn2", "cnn3", "residual"]),
    st.floats(-3, 38).map(lambda power: 10.0**power),
    st.floats(-3, 38).map(lambda power: 10.0**power),
    st.integers(0, 1000),
    st.integers(0, 5),
)
def test_a_record_less_moves_the_sum_by_at_most_the_clip(name, scale, weights, seed, removed):
    net = network(name, seed)
    net.weights.mul_(weights)
    x, y = batch(6, seed=seed)
    x[removed] *= scale
    kept = torch.arange(6) != removed
    with_record, _ = clipped_grid_sum(net, x, y, 0.3)
    without, _ = clipped_grid_sum(net, x[kept], y[kept], 0.3)
    assert within(with_record - without, 0.3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["mlp", "cnn2", "cnn3", "residual"])
def test_a_broken_record_contributes_zero(name, value):
    net = network(name)
    x, y = batch(6)
    x[2, 0, 3, 3] = value
    kept = torch.arange(6) != 2
    total, norms = clipped_grid_sum(net, x, y, 0.3)
    assert torch.equal(total, clipped_grid_sum(net, x[kept], y[kept], 0.3)[0])
    assert norms[2] == math.inf
    assert norms[kept].isfinite().all()


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_nothing_but_broken_records(name):
    net = network(name)
    total, _ = clipped_grid_sum(net, torch.full((3, *SHAPE), math.nan), torch.zeros(3, dtype=torch.long), 1.0)
    assert not total.any()


class Chance(nn.Module):
    """Drops also in evaluation, and centres what it gets together: both would tie records to each other."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, CLASSES)
        self.quiet = nn.Dropout(0.5).eval()

    def forward(self, x):
        x = functional.dropout(x.flatten(1), 0.5)
        return self.head(self.quiet(x) - 0.5 * x.mean(0))


def test_dropout_and_layers_that_mix_records_tie_none_to_the_others():
    dropping = FlatNetwork(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, CLASSES)), 0)
    x, y = batch(8)
    for net in (dropping, FlatNetwork(Chance, 0)):
        modes = [part.training for part in net.module.modules()]
        total, _ = clipped_grid_sum(net, x, y, 0.1)
        less, _ = clipped_grid_sum(net, x[1:], y[1:], 0.1)
        assert torch.equal(total - less, clipped_grid_sum(net, x[:1], y[:1], 0.1)[0])
        assert [part.training for part in net.module.modules()] == modes
    net = dropping
    net.module.eval()
    torch.testing.assert_close(clipped_grid_sum(net, x, y, 1e6)[0].double() * UNIT, one_by_one(net, x, y).sum(0))


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    clipped_grid_sum(FlatNetwork(Chance, 0), *batch(), 0.1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, 2 * LARGEST * UNIT])
def test_no_clip_is_refused(clip):
    with pytest.raises(ValueError, match=f"clip is {re.escape(str(clip))}: must be"):
        clipped_grid_sum(network("mlp"), *batch(), clip)


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
