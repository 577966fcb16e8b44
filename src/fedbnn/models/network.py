"""Any torch module, with all its trainable parameters as views into one flat buffer.

One buffer makes an optimiser step, a weight draw or a Kullback-Leibler gradient one operation on one array,
whatever the layers are. Four-dimensional (convolution) weights lie channels-last inside the buffer, which is the
layout the fast convolution kernels want.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedbnn.base.errors import UserError
from fedbnn.base.wording import did_you_mean, listing

ModuleFactory = Callable[[], nn.Module]


def view_of(buffer: Tensor, offset: int, shape: torch.Size) -> Tensor:
    """The piece of `buffer` at `offset` seen with `shape`; 4-D shapes are stored channels-last."""
    piece = buffer[offset : offset + shape.numel()]
    if len(shape) == 4:
        out, channels, height, width = shape
        return piece.view(out, height, width, channels).permute(0, 3, 1, 2)
    return piece.view(shape)


def frozen_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that have parameters none of which is trained: fixed functions, once they are in evaluation mode."""
    owned = ((layer, [one.requires_grad for one in layer.parameters()]) for layer in module.modules())
    return [layer for layer, trained in owned if trained and not any(trained)]


def refuse_running_statistics(module: nn.Module) -> None:
    """Running statistics are data-dependent state outside the weights: no posterior over weights covers them.

    In a frozen layer they stand still.
    """
    still = {inner for layer in frozen_layers(module) for inner in layer.modules()}
    for name, child in module.named_modules():
        if "running_mean" in child._buffers and child._buffers["running_mean"] is not None and child not in still:
            raise UserError(
                f"model {type(module).__name__}: layer '{name}' ({type(child).__name__}) keeps running statistics, "
                "which a distribution over weights cannot hold; use torch.nn.GroupNorm instead, or freeze the layer"
            )


class FlatNetwork:
    """A module bound to a flat `weights` buffer and a flat `gradient` buffer of the same length.

    Writing into `weights` changes the module; `backward` on anything computed by calling the network adds into
    `gradient`. Parameters that do not require a gradient stay as the module made them, and layers with such parameters
    only are in evaluation mode also while others train. The module is made on the CPU and then moved, so it starts with
    the same weights on every device.

    Attributes:
        spans: which piece of the buffers is which parameter, by the name that torch gives it, in the buffers' order.

    """

    def __init__(self, factory: ModuleFactory, seed: int, device: torch.device | str = "cpu") -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # other devices' generators would not be put back
            self.module = factory().to(device)
        refuse_running_statistics(self.module)
        named = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        parameters = list(named.values())
        if not parameters:
            raise UserError(f"model {type(self.module).__name__} has no trainable parameters")
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in parameters):
            raise UserError(
                f"model {type(self.module).__name__} has lazy layers, whose sizes are not known: state them"
            )
        self._frozen = frozen_layers(self.module)
        self.size = sum(p.numel() for p in parameters)
        self.weights = torch.empty(self.size, device=device)
        self.gradient = torch.zeros(self.size, device=device)
        self.spans: dict[str, slice] = {}
        offset = 0
        for name, parameter in named.items():
            view = view_of(self.weights, offset, parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = view_of(self.gradient, offset, parameter.shape)
            self.spans[name] = slice(offset, offset + parameter.numel())
            offset += parameter.numel()

    def span(self, name: str) -> slice:
        """The piece of the buffers that is this parameter, or all parameters of this layer: 'body', 'body.0.weight'.

        They lie side by side. A weight that two layers share belongs to the first. A method that shares a body and
        keeps a head sends `weights[network.span("body")]`.
        """
        found = [one for key, one in self.spans.items() if key == name or key.startswith(f"{name}.")]
        if not found:
            raise UserError(
                f"model {type(self.module).__name__} has no trainable layer or parameter '{name}'"
                f"{did_you_mean(name, self.spans)} (there are {listing(self.spans)})"
            )
        return slice(found[0].start, found[-1].stop)

    def train(self) -> None:
        """The module in training mode, but for frozen layers."""
        self.module.train()
        for layer in self._frozen:
            layer.eval()

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x)
        return logits


def probe(network: FlatNetwork, input_shape: tuple[int, ...], classes: int, name: str) -> int:
    """Pass one record through: the model must give one logit per class. Returns the operations it took."""
    with FlopCounterMode(display=False) as counter:
        check_outputs(network, input_shape, classes, name)
    return int(counter.get_total_flops())


def check_outputs(network: FlatNetwork, input_shape: tuple[int, ...], classes: int, name: str) -> None:
    """A UserError if the model does not give one logit per class for a record of this shape."""
    network.module.eval()
    try:
        with torch.inference_mode():
            shape = tuple(network(torch.zeros(1, *input_shape)).shape)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"model '{name}' cannot take records of shape {input_shape}: {reason}") from error
    if shape != (1, classes):
        raise UserError(
            f"model '{name}' gives outputs of shape {shape[1:]} for a record, but the data has {classes} classes: "
            f"its last layer must have {classes} outputs"
        )
