"""The gradient of every single record of a batch, without a backward pass for each.

Any model: torch.func's vmap over the gradient of one record's loss. A stack of plain layers: one ordinary pass forward
and back for the whole batch, and then, with a_r the input and d_r the gradient at the output of a layer,

    linear:        g_r = d_r a_r^T,   so ||g_r|| = ||d_r|| ||a_r|| and sum_r c_r g_r = (c d)^T a     (Goodfellow 2015)
    convolution:   g_r = d_r^T A_r,   A_r the windows of a_r that the kernel meets    (Rochette, Manoel, Tramel 2019)

so that the gradients of a linear layer are never written out. Pieces come in the order and layout of the network's
flat gradient buffer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedbnn.models.network import FlatNetwork

_SHORT = 512
_CACHE_FRIENDLY = 2**18  # numbers in the windows of a few records that stay in a core's cache


@dataclass(frozen=True)
class Rows:
    """One part of the gradient, written out: a row for each record."""

    matrix: Tensor

    @property
    def width(self) -> int:
        return self.matrix.shape[1]

    def squared_norms(self) -> Tensor:
        return _squared_norms(self.matrix)

    def forget(self, records: Tensor) -> None:
        self.matrix[records] = 0

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        total.addmv_(self.matrix.T, weights)


@dataclass(frozen=True)
class Outer:
    """One part of the gradient as an outer product for each record: left_r right_r^T."""

    left: Tensor
    right: Tensor

    @property
    def width(self) -> int:
        return self.left.shape[1] * self.right.shape[1]

    def squared_norms(self) -> Tensor:
        return _squared_norms(self.left) * _squared_norms(self.right)

    def forget(self, records: Tensor) -> None:
        self.left[records] = 0
        self.right[records] = 0

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        root = weights.sqrt().unsqueeze(1)  # on both sides: the weight of a huge record alone could underflow
        total.view(self.left.shape[1], -1).addmm_((self.left * root).T, self.right * root)


Piece = Rows | Outer


def _squared_norms(matrix: Tensor) -> Tensor:
    """Short sums in single precision, added up in double: as fast as the one, nearly as exact as the other.

    The double ones on the CPU: some devices have no double precision.
    """
    multiple = matrix.shape[1] // _SHORT * _SHORT
    norms: Tensor = torch.linalg.vector_norm(matrix[:, multiple:], dim=1).cpu().double().square()
    if multiple:
        parts = torch.linalg.vector_norm(matrix[:, :multiple].unflatten(1, (-1, _SHORT)), dim=2)
        norms += parts.cpu().double().square().sum(1)
    return norms


def record_gradients(network: FlatNetwork, x: Tensor, y: Tensor) -> list[Piece]:
    """The gradients of each record's cross-entropy, by the fastest way that is right for this model."""
    layers = plain_layers(network)
    pieces = by_layers(layers, x, y) if layers else None
    return by_vmap(network, x, y) if pieces is None else pieces


def by_vmap(network: FlatNetwork, x: Tensor, y: Tensor) -> list[Piece]:
    """Whatever the model does, each record passes through it alone."""
    parameters = [p for p in network.module.parameters() if p.requires_grad]
    position = {id(p): index for index, p in enumerate(parameters)}
    # Every place a parameter is used, each layer once: left to find shared ones itself, functional_call puts a layer
    # that occurs twice back wrongly.
    names = {
        f"{prefix}.{name}" if prefix else name: position[id(p)]
        for prefix, layer in network.module.named_modules()
        for name, p in layer.named_parameters(recurse=False, remove_duplicate=False)
        if p.requires_grad
    }

    def loss(values: list[Tensor], record: Tensor, label: Tensor) -> Tensor:
        parameters_now = {name: values[index] for name, index in names.items()}
        logits = functional_call(network.module, parameters_now, (record.unsqueeze(0),), tie_weights=False)
        return functional.cross_entropy(logits, label.unsqueeze(0))

    values = [p.detach() for p in parameters]
    gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(values, x, y)
    pieces: list[Piece] = []
    for gradient in gradients:
        stored = gradient.permute(0, 1, 3, 4, 2) if gradient.dim() == 5 else gradient  # as network.view_of stores it
        pieces.append(Rows(stored.reshape(len(x), -1)))
    return pieces


def plain_layers(network: FlatNetwork) -> list[nn.Module] | None:
    """The layers one after another, if that is all the model is and the formulas hold for each; else None.

    Types are compared exactly: a subclass may do anything, records that meet each other included.
    """
    layers: list[nn.Module] = []

    def collect(module: nn.Module) -> bool:
        if module._forward_hooks or module._forward_pre_hooks or getattr(module, "inplace", False):
            return False
        if type(module) is nn.Sequential:
            return all(collect(child) for child in module)
        layers.append(module)
        return _is_plain(module)

    if not collect(network.module):
        return None
    # A parameter that is frozen or used twice makes the two counts differ.
    trainable = sum(p.numel() for layer in layers for p in layer.parameters())
    return layers if trainable == network.size else None


def _is_plain(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return (
            layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and tuple(layer.dilation) == (1, 1)
        )
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    return type(layer) in (nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Tanh, nn.GELU, nn.Dropout, nn.Identity)


def by_layers(layers: list[nn.Module], x: Tensor, y: Tensor) -> list[Piece] | None:
    """One pass for the whole batch; None if a linear or convolution layer meets an input of unusual dimensions."""
    weighted: list[nn.Module] = []
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    value = x
    with torch.enable_grad():
        for layer in layers:
            before, value = value, layer(value)
            if type(layer) in (nn.Linear, nn.Conv2d):
                if before.dim() != (2 if type(layer) is nn.Linear else 4):
                    return None
                weighted.append(layer)
                inputs.append(before.detach())
                outputs.append(value)
        loss = functional.cross_entropy(value, y, reduction="sum")
    errors = torch.autograd.grad(loss, outputs)
    pieces: list[Piece] = []
    for layer, before, error in zip(weighted, inputs, errors, strict=True):
        if isinstance(layer, nn.Conv2d):
            flat_error = error.permute(0, 2, 3, 1).reshape(len(x), -1, layer.out_channels)
            pieces.append(Rows(_kernel_gradients(layer, before, flat_error)))
            bias_gradient = flat_error.sum(1)
        else:
            pieces.append(Outer(error, before))
            bias_gradient = error
        if layer.bias is not None:
            pieces.append(Rows(bias_gradient))
    return pieces


def _kernel_gradients(layer: nn.Conv2d, before: Tensor, error: Tensor) -> Tensor:
    """d_r^T A_r for every record, each a row in channels-last order; a few records at a time to stay in the cache."""
    assert not isinstance(layer.padding, str)
    (down, across), (height, width), (step_down, step_across) = layer.padding, layer.kernel_size, layer.stride
    padded = functional.pad(before.permute(0, 2, 3, 1), (0, 0, across, across, down, down))
    windows = padded.unfold(1, height, step_down).unfold(2, width, step_across).permute(0, 1, 2, 4, 5, 3)
    count, places, out = error.shape
    taps = height * width * layer.in_channels
    gradients = error.new_empty(count, out, taps)
    few = max(1, _CACHE_FRIENDLY // (places * taps))
    for start in range(0, count, few):
        part = slice(start, start + few)
        torch.bmm(error[part].transpose(1, 2), windows[part].reshape(-1, places, taps), out=gradients[part])
    return gradients.flatten(1)
