"""EfficientNet-lite without its last layer: a fixed function from pictures to 1280 features.

The family of Tan and Le (2019) without squeeze-and-excitation and with ReLU6: inverted residual blocks, each

    x + project(relu6(depthwise(relu6(expand(x)))))

where width and stride stay the same, and without the sum where they do not. BatchNorm is folded into the convolutions
(`fedbnn.features.bodies.weights`), so nothing in here keeps statistics. Padding is TensorFlow's "same", by which the
networks were trained: the odd pixel of a strided convolution goes to the right and to the bottom.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbnn.base.errors import UserError
from fedbnn.features.bodies.weights import folded

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue, from 0 to 1
_HALVING = (1, 2, 3, 5)  # stages whose first block halves the picture
_STAGES = {  # blocks of each stage
    "efficientnet_lite0": (1, 2, 2, 3, 3, 4, 1),
    "efficientnet_lite1": (1, 3, 3, 4, 4, 5, 1),
    "efficientnet_lite2": (1, 3, 3, 4, 4, 5, 1),
}


class SameConv(nn.Conv2d):
    """A convolution whose output has ceil(size / stride) pixels, given by its weights; all fixed."""

    def __init__(self, weights: Tensor, bias: Tensor, stride: int = 1) -> None:
        out, depth, size, _ = weights.shape
        groups = out if depth == 1 else 1
        super().__init__(depth * groups, out, size, stride, padding=size // 2 if stride == 1 else 0, groups=groups)
        self.weight = nn.Parameter(weights.contiguous(memory_format=torch.channels_last), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        stride, size = self.stride[0], self.kernel_size[0]
        if stride > 1:
            height, width = (max(0, (-(-n // stride) - 1) * stride + size - n) for n in x.shape[2:])
            x = functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(x)


class Block(nn.Module):
    """An inverted residual block of these weights, whose names begin with `name`."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, stride: int) -> None:
        super().__init__()

        def conv(part: str, by: int = 1) -> SameConv:
            return SameConv(weights[f"{name}.{part}.weight"], weights[f"{name}.{part}.bias"], by)

        self.expand = conv("expand") if f"{name}.expand.weight" in weights else None
        self.depthwise, self.project = conv("depthwise", stride), conv("project")
        first = self.expand or self.depthwise
        self.added = stride == 1 and first.in_channels == self.project.out_channels

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else functional.relu6(self.expand(x), inplace=True)
        out: Tensor = self.project(functional.relu6(self.depthwise(wide), inplace=True))
        return x + out if self.added else out


class EfficientNetLite(nn.Module):
    """Pictures with values from 0 to 1, resized to `size` pixels, to 1280 features.

    One channel counts as three alike.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, weights: Mapping[str, Tensor], stages: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1))
        self.stem = SameConv(weights["stem.weight"], weights["stem.bias"], 2)
        first = [(stage, place == 0) for stage, count in enumerate(stages) for place in range(count)]
        self.blocks = nn.Sequential(
            *(
                Block(weights, f"{at}", 2 if start and stage in _HALVING else 1)
                for at, (stage, start) in enumerate(first)
            )
        )
        self.top = SameConv(weights["top.weight"], weights["top.bias"])

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(-1, 3, -1, -1)
        if x.shape[2:] != (self.size, self.size):
            x = functional.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        x = ((x - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)
        x = self.blocks(functional.relu6(self.stem(x), inplace=True))
        return functional.relu6(self.top(x), inplace=True).mean((2, 3))


def efficientnet_lite(name: str, input_shape: tuple[int, ...], size: int = 128) -> nn.Module:
    """The body of this name with ImageNet's weights, for pictures of one or three channels."""
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        raise UserError(f"body '{name}' needs images of one or three channels, the records are {input_shape}")
    if not 32 <= size <= 1024:
        raise UserError(f"body '{name}': size = {size} must be from 32 to 1024 pixels")
    return EfficientNetLite(folded(name), _STAGES[name], size)
