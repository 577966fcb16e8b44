"""What a network makes of a record before its last linear layer: the representation that its classes are read from."""

import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.models.network import FlatNetwork


def last_linear(network: FlatNetwork) -> nn.Linear:
    """The linear layer that was put last into the module."""
    found = [layer for layer in network.module.modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise UserError(f"model {type(network.module).__name__} has no torch.nn.Linear to take a representation before")
    return found[-1]


def represented(network: FlatNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
    """The representations of records, one row each, and the outputs; both carry gradients."""
    seen: list[Tensor] = []
    watch = last_linear(network).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        outputs = network(x)
    finally:
        watch.remove()
    return seen[-1].flatten(1), outputs


@torch.inference_mode()
def representations_of(network: FlatNetwork, weights: Tensor, x: Tensor, batch: int = 256) -> Tensor:
    """The representation of every record of x at these weights."""
    network.module.eval()
    network.weights.copy_(weights)
    return torch.cat([represented(network, part)[0] for part in x.split(batch)])


def check_representation(network: FlatNetwork, x: Tensor, name: str) -> None:
    """A UserError unless the outputs of the model are those of the linear layer that was put last into it."""
    network.module.eval()
    with torch.inference_mode():
        try:
            seen, outputs = represented(network, x[:2])
            fits = torch.allclose(last_linear(network)(seen), outputs, rtol=1e-4, atol=1e-5)
        except (IndexError, RuntimeError):
            fits = False
    if not fits:
        raise UserError(f"model '{name}' does not end in the torch.nn.Linear that was put last into it")
