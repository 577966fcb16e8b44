import pytest
import torch
from torch import nn
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.models.architectures import MODELS, ModelSettings, build
from fedbnn.models.network import FlatNetwork, probe, view_of

SHAPE = (3, 8, 8)
CLASSES = 5


def factory(name):
    options = {"width": 0.1} if name == "vgg9" else {}
    return lambda: build(ModelSettings(name, options=options), SHAPE, CLASSES)


def seeded(make, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def inputs(count=4, shape=SHAPE, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def labels(count=4):
    return torch.arange(count) % CLASSES


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_the_modules_own(name):
    flat = FlatNetwork(factory(name), seed=7)
    plain = seeded(factory(name), 7)
    assert flat.size == sum(p.numel() for p in plain.parameters()) == len(flat.weights) == len(flat.gradient)
    with torch.inference_mode():
        torch.testing.assert_close(flat(inputs()), plain(inputs()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_flattening_keeps_every_value(name):
    flat = FlatNetwork(factory(name), seed=7)
    for ours, theirs in zip(flat.module.parameters(), seeded(factory(name), 7).parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_buffer_is_autograds(name):
    flat = FlatNetwork(factory(name), seed=7)
    functional.cross_entropy(flat(inputs()), labels()).backward()
    plain = seeded(factory(name), 7)
    parameters = list(plain.parameters())
    expected = torch.autograd.grad(functional.cross_entropy(plain(inputs()), labels()), parameters)
    offset = 0
    for gradient in expected:
        ours = view_of(flat.gradient, offset, gradient.shape)
        torch.testing.assert_close(ours, gradient, rtol=1e-3, atol=1e-6)
        offset += gradient.numel()
    assert offset == flat.size
    assert flat.gradient.abs().sum() > 0


def test_backward_adds_into_the_gradient_buffer():
    flat = FlatNetwork(factory("cnn2"), seed=7)
    flat(inputs()).sum().backward()
    once = flat.gradient.clone()
    flat(inputs()).sum().backward()
    torch.testing.assert_close(flat.gradient, 2 * once)
    flat.gradient.zero_()
    assert all(p.grad is not None and not p.grad.any() for p in flat.module.parameters())


@pytest.mark.parametrize("name", ["cnn2", "cnn3", "vgg9"])
def test_convolution_weights_are_channels_last_views(name):
    flat = FlatNetwork(factory(name), seed=7)
    offset = four_dimensional = 0
    for parameter in flat.module.parameters():
        for tensor, buffer in ((parameter, flat.weights), (parameter.grad, flat.gradient)):
            assert tensor.data_ptr() == buffer.data_ptr() + 4 * offset
            layout = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
            assert tensor.is_contiguous(memory_format=layout)
        four_dimensional += parameter.dim() == 4
        offset += parameter.numel()
    assert four_dimensional >= 2


def test_view_of_a_four_dimensional_shape():
    buffer = torch.arange(30.0)
    view = view_of(buffer, 6, torch.Size((2, 3, 2, 2)))
    assert view.shape == (2, 3, 2, 2)
    for o in range(2):
        for c in range(3):
            for h in range(2):
                for w in range(2):
                    assert view[o, c, h, w] == 6 + ((o * 2 + h) * 2 + w) * 3 + c


@pytest.mark.parametrize("name", MODELS)
def test_writing_the_buffer_changes_the_output(name):
    flat = FlatNetwork(factory(name), seed=7)
    initial, before = flat.weights.clone(), flat(inputs()).detach()
    flat.weights.mul_(1.5)
    assert not torch.allclose(flat(inputs()), before)
    flat.weights.zero_()
    assert torch.equal(flat(inputs()), torch.zeros(4, CLASSES))
    flat.weights.copy_(initial)
    assert torch.equal(flat(inputs()), before)


def test_frozen_parameters_stay_out():
    def make():
        module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        module[0].weight.requires_grad_(False)
        return module

    flat, plain = FlatNetwork(make, seed=1), seeded(make, 1)
    assert flat.size == 3 + 3 * 2 + 2
    frozen = flat.module[0].weight
    assert torch.equal(frozen, plain[0].weight)
    flat.weights.zero_()
    assert torch.equal(frozen, plain[0].weight)
    flat(torch.ones(1, 4)).sum().backward()
    assert frozen.grad is None


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(x).relu())


def test_tied_parameters_appear_once():
    flat, plain = FlatNetwork(Tied, seed=1), seeded(Tied, 1)
    assert flat.size == 16 + 4 + 4
    assert flat.module.one.weight is flat.module.two.weight
    x = inputs(shape=(4,))
    torch.testing.assert_close(flat(x), plain(x))
    flat(x).square().sum().backward()
    plain(x).square().sum().backward()
    torch.testing.assert_close(flat.module.one.weight.grad, plain.one.weight.grad)
    assert flat.module.one.weight.grad.data_ptr() == flat.gradient.data_ptr()


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.BatchNorm1d(4),
        lambda: nn.BatchNorm2d(4, affine=False),
        lambda: nn.InstanceNorm2d(4, track_running_stats=True),
        lambda: nn.Sequential(nn.Identity(), nn.Sequential(nn.BatchNorm3d(4))),
    ],
)
def test_running_statistics_are_refused(layer):
    with pytest.raises(UserError, match=r"(BatchNorm|InstanceNorm).*keeps running statistics.*GroupNorm"):
        FlatNetwork(lambda: nn.Sequential(nn.Linear(4, 4), layer()), seed=0)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.LayerNorm([4]),
        lambda: nn.BatchNorm1d(4, track_running_stats=False),
        lambda: nn.InstanceNorm1d(4),
    ],
)
def test_norms_without_running_statistics_are_accepted(layer):
    flat = FlatNetwork(lambda: nn.Sequential(nn.Linear(4, 4), layer()), seed=0)
    assert flat.size >= 20


def test_group_norm_works():
    def make():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))

    flat = FlatNetwork(make, seed=1)
    torch.testing.assert_close(flat(inputs()), seeded(make, 1)(inputs()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [nn.Identity, lambda: nn.Linear(2, 2).requires_grad_(False)])
def test_a_module_without_trainable_parameters(make):
    with pytest.raises(UserError, match="no trainable parameters"):
        FlatNetwork(make, seed=0)


def test_the_seed_decides_the_initial_weights():
    one, same, other = (FlatNetwork(factory("cnn3"), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.weights, same.weights)
    assert not torch.equal(one.weights, other.weights)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    FlatNetwork(factory("mlp"), seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", MODELS)
def test_the_right_width_passes(name):
    assert probe(FlatNetwork(factory(name), seed=0), SHAPE, CLASSES, name) > 0


def test_operations_are_counted():
    flat = FlatNetwork(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU(), nn.Linear(7, CLASSES)), seed=0)
    assert probe(flat, SHAPE, CLASSES, "mine") == 2 * (192 * 7 + 7 * CLASSES)


def test_another_width_is_refused():
    flat = FlatNetwork(factory("mlp"), seed=0)
    with pytest.raises(
        UserError, match=r"model 'mine' gives outputs of shape \(5,\).*the data has 7 classes.*7 outputs"
    ):
        probe(flat, SHAPE, 7, "mine")


def test_an_output_per_pixel_is_refused():
    flat = FlatNetwork(lambda: nn.Conv2d(3, CLASSES, 1), seed=0)
    with pytest.raises(UserError, match=r"outputs of shape \(5, 8, 8\)"):
        probe(flat, SHAPE, CLASSES, "mine")


def test_records_of_another_shape_are_refused_in_one_line():
    flat = FlatNetwork(lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, CLASSES)), seed=0)
    with pytest.raises(UserError, match=r"model 'mine' cannot take records of shape \(3, 8, 8\): ") as caught:
        probe(flat, SHAPE, CLASSES, "mine")
    assert "\n" not in str(caught.value)


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, CLASSES)

    def forward(self, x):
        raise ValueError("only tables, please")


def test_a_forward_pass_that_raises_another_error():
    with pytest.raises(UserError, match="only tables, please"):
        probe(FlatNetwork(Picky, seed=0), SHAPE, CLASSES, "mine")


@pytest.mark.parametrize("name", MODELS)
def test_spans_are_the_modules_parameters_and_cover_the_buffer_once(name):
    flat = FlatNetwork(factory(name), seed=7)
    assert list(flat.spans) == [key for key, _ in flat.module.named_parameters()]
    assert [span.start for span in flat.spans.values()] == [0, *(span.stop for span in flat.spans.values())][:-1]
    assert max(span.stop for span in flat.spans.values()) == flat.size


@pytest.mark.parametrize("name", MODELS)
def test_writing_a_span_changes_its_parameter_and_no_other(name):
    flat = FlatNetwork(factory(name), seed=7)
    for key, span in flat.spans.items():
        before = {other: p.detach().clone() for other, p in flat.module.named_parameters()}
        written = torch.arange(1.0, 1.0 + span.stop - span.start)
        flat.weights[span] = written
        for other, parameter in flat.module.named_parameters():
            if other == key:
                assert torch.equal(parameter.detach().flatten().sort().values, written)
            else:
                assert torch.equal(parameter, before[other])


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_a_layer_lies_in_its_span(name):
    flat = FlatNetwork(factory(name), seed=7)
    last = list(flat.spans)[-1].rpartition(".")[0]
    flat.gradient.zero_()
    functional.cross_entropy(flat(inputs()), labels()).backward()
    layer = flat.module.get_submodule(last)
    assert flat.span(last).stop == flat.size
    assert torch.equal(
        flat.gradient[flat.span(last)], torch.cat([p.grad.flatten() for p in (layer.weight, layer.bias)])
    )


class BodyAndHead(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6))
        self.body2 = nn.Linear(6, 6, bias=False)
        self.head = nn.Linear(6, 3)
        if tied:
            self.body2.weight = self.body[2].weight

    def forward(self, x):
        return self.head(self.body2(self.body(x)))


def test_a_layers_span_is_that_of_all_its_parameters():
    flat = FlatNetwork(BodyAndHead, seed=1)
    assert flat.span("body") == slice(0, 4 * 6 + 6 + 6 * 6 + 6)
    assert flat.span("body.2") == slice(30, 72)
    assert flat.span("body.2.bias") == flat.spans["body.2.bias"] == slice(66, 72)
    assert flat.span("body2") == slice(72, 108)
    assert flat.span("head") == slice(108, flat.size)
    flat.weights[flat.span("head")] = 0.0
    assert not flat(inputs(2, (4,))).any()


def test_a_weight_that_layers_share_is_in_the_span_of_the_first():
    flat = FlatNetwork(lambda: BodyAndHead(tied=True), seed=1)
    assert "body2.weight" not in flat.spans
    assert flat.span("head") == slice(flat.span("body").stop, flat.size)


@pytest.mark.parametrize("name", ["bod", "body.1", "", "head.weights"])
def test_a_span_that_is_not_there(name):
    with pytest.raises(
        UserError, match=f"BodyAndHead has no trainable layer or parameter '{name}'.*'head.bias'"
    ) as error:
        FlatNetwork(BodyAndHead, seed=1).span(name)
    assert "\n" not in str(error.value)


def test_frozen_parameters_have_no_span():
    def half_frozen():
        module = BodyAndHead()
        module.body.requires_grad_(False)
        return module

    flat = FlatNetwork(half_frozen, seed=1)
    assert [key for key in flat.spans if key.startswith("body.")] == []
    assert flat.span("body2").start == 0
