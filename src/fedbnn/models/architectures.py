"""The networks that ship with fedbnn, and the user's own.

A model is a factory `(input_shape, classes, **options) -> torch.nn.Module` that returns one logit per class.
Pooling comes before the rectifier: max and ReLU commute, and the ReLU then touches a quarter of the values.
"""

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from pydantic import Field
from torch import nn

from fedbnn.base.errors import UserError
from fedbnn.base.imports import factory_of
from fedbnn.base.settings import settings
from fedbnn.models.bayesian_part import Which, names_of
from fedbnn.models.sequences import gru, transformer

Factory = Callable[..., nn.Module]


@settings
class ModelSettings:
    """One architecture of the federation and the share of clients that run it."""

    name: str = Field(
        default="mlp", description="a built-in model (see `fedbnn models`) or your own as 'package.module:factory'"
    )
    share: float = Field(
        default=1.0, gt=0, description="share of the clients with this model, relative to the other shares"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the model, e.g. width")
    bayesian: Which = Field(
        default="all",
        description="which weights have a posterior: all, last_layer, or a list of names of layers or parameters; the "
        "others have one value each",
    )
    rest_rate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="how fast those others learn, as a part of the method's learning rate: at 0 they stay as the model "
        "makes them, which every method can do; more is for fedbnn, fedbnn_paper and local_bnn",
    )
    body: str = Field(
        default="",
        description="a fixed network whose features the model sees instead of inputs: efficientnet_lite0, "
        "efficientnet_lite1 or efficientnet_lite2, trained on ImageNet (needs the extra fedbnn[pretrained]), or your "
        "own as 'package.module:factory'; empty: none",
    )
    body_options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the body, e.g. size")
    components: int = Field(
        default=200,
        ge=1,
        description="principal components, over the alignment set, that are kept of a body's features",
    )

    @property
    def architecture(self) -> str:
        """Name, options and what else is not as usual: equal for models whose weights mean the same."""
        said = (json.dumps(part, sort_keys=True) for part in (self.options, self.unusual) if part)
        return " ".join([self.name, *said])

    @property
    def body_key(self) -> str:
        """The body and all it depends on: equal for models that see the same features; empty where there is none."""
        return json.dumps([self.body, self.body_options, self.components], sort_keys=True) if self.body else ""

    @property
    def unusual(self) -> dict[str, Any]:
        """What differs from the defaults beside name, share and options."""
        usual, own = ModelSettings(), (one.name for one in fields(self))
        named = (name for name in own if name not in ("name", "share", "options"))
        return {name: getattr(self, name) for name in named if getattr(self, name) != getattr(usual, name)}

    @property
    def slow(self) -> bool:
        """Whether weights without a posterior learn too."""
        return self.bayesian != "all" and self.rest_rate > 0


def mlp(input_shape: tuple[int, ...], classes: int, hidden: Iterable[int] = (128,)) -> nn.Module:
    """Fully connected layers with ReLU; any input."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = 1
    for size in input_shape:
        width *= size
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))


def _convolutional(
    name: str, input_shape: tuple[int, ...], classes: int, blocks: list[list[int]], hidden: list[int]
) -> nn.Module:
    """Blocks of 3x3 convolutions, each block ending in 2x2 max pooling, then fully connected layers."""
    if len(input_shape) != 3:
        raise UserError(f"model '{name}' needs images (channels, height, width), the records are {input_shape}")
    channels, height, width = input_shape
    shrink = 2 ** len(blocks)
    if min(height, width) < shrink:
        raise UserError(f"model '{name}' needs images of at least {shrink}x{shrink}, these are {height}x{width}")
    layers: list[nn.Module] = []
    for block in blocks:
        for position, out in enumerate(block):
            layers.append(nn.Conv2d(channels, out, 3, padding=1))
            layers += [nn.MaxPool2d(2), nn.ReLU()] if position == len(block) - 1 else [nn.ReLU()]
            channels = out
    head = mlp((channels * (height // shrink) * (width // shrink),), classes, hidden)
    return nn.Sequential(*layers, head)


def cnn2(input_shape: tuple[int, ...], classes: int, channels: Iterable[int] = (16, 32), hidden: int = 24) -> nn.Module:
    """Two convolutions and two fully connected layers, about 50 thousand weights on 28x28 or 32x32 images."""
    return _convolutional("cnn2", input_shape, classes, [[size] for size in channels], [hidden])


def cnn3(
    input_shape: tuple[int, ...], classes: int, channels: Iterable[int] = (16, 32, 64), hidden: int = 32
) -> nn.Module:
    """Three convolutions and two fully connected layers, about 50 thousand weights on 28x28 or 32x32 images."""
    return _convolutional("cnn3", input_shape, classes, [[size] for size in channels], [hidden])


def vgg9(input_shape: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """VGG9 (six convolutions, three fully connected layers), 3.5 million weights on 32x32 at width 1."""

    def scaled(size: int) -> int:
        return max(1, round(size * width))

    blocks = [[scaled(32), scaled(64)], [scaled(128), scaled(128)], [scaled(256), scaled(256)]]
    return _convolutional("vgg9", input_shape, classes, blocks, [scaled(512), scaled(512)])


MODELS: dict[str, Factory] = {
    "mlp": mlp,
    "cnn2": cnn2,
    "cnn3": cnn3,
    "vgg9": vgg9,
    "gru": gru,
    "transformer": transformer,
}


def find_factory(name: str) -> Factory:
    """A built-in model by its name, or the user's own from 'package.module:factory'."""
    return factory_of("model", name, MODELS)


def settings_of(model: ModelSettings | Factory | str) -> ModelSettings:
    """Settings, a name, or the user's own function itself, if workers can find it by where it is."""
    if isinstance(model, ModelSettings):
        return model
    if isinstance(model, str):
        return ModelSettings(model)
    module, name = getattr(model, "__module__", None), getattr(model, "__qualname__", "<none>")
    if module is None or "<" in name:
        raise UserError(
            f"model {name}: give a function that stands in a module by itself, not inside another or a lambda"
        )
    return ModelSettings(f"{module}:{name}")


def build(model: ModelSettings, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The module of these settings for records of this shape and this number of classes."""
    factory = find_factory(model.name)
    try:
        signature = inspect.signature(factory)
    except ValueError as error:
        raise UserError(f"model '{model.name}' cannot be called as (input_shape, classes): {error}") from error
    try:
        signature.bind(input_shape, classes, **model.options)
    except TypeError as error:
        allowed = list(signature.parameters)[2:]
        raise UserError(f"model '{model.name}': {error}; its options are {', '.join(allowed) or 'none'}") from error
    try:
        module = factory(input_shape, classes, **model.options)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"model '{model.name}' with options {model.options} cannot be made: {reason}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"model '{model.name}' returned a {type(module).__name__}, not a torch.nn.Module")
    if model.bayesian != "all":
        named = {name: one for name, one in module.named_parameters() if one.requires_grad}
        chosen = names_of(model.bayesian, named, model.name)
        if not model.slow:
            for name in named.keys() - chosen:
                named[name].requires_grad_(False)
    return module


def assign(models: tuple[ModelSettings, ...], clients: int) -> list[ModelSettings]:
    """Deal the models to the clients by their shares, evenly mixed along the list of clients.

    Of the models that are behind their share, client i gets the one that would first reach its next whole client
    (Balinski and Young's quota method), so after any number of clients each model's count is within one of
    its share of them.
    """
    total = sum(model.share for model in models)
    given = [0] * len(models)
    dealt = []
    for position in range(1, clients + 1):
        due = [k for k, model in enumerate(models) if given[k] < model.share / total * position - 1e-9]
        choice = min(due, key=lambda k: ((given[k] + 1) / models[k].share, k))
        given[choice] += 1
        dealt.append(models[choice])
    return dealt
