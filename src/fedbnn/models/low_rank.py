"""A network under corrections of low rank, W * (1 + U V^T) entry by entry, of its linear and convolution layers."""

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Corrected(nn.Module):
    """A network whose linear and convolution layers have the weights W * (1 + U V^T); its parameters come first."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        self.base = base
        layers = (layer for layer in base.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d))
        masked = {id(layer.weight) for layer in layers}
        chosen = {name: w for name, w in base.named_parameters() if w.requires_grad and id(w) in masked}
        self.names = list(chosen)
        self.left = nn.ParameterList(torch.zeros(len(w), rank) for w in chosen.values())
        self.right = nn.ParameterList(torch.zeros(w[0].numel(), rank) for w in chosen.values())

    def forward(self, x: Tensor) -> Tensor:
        weights = {}
        for name, u, v in zip(self.names, self.left, self.right, strict=True):
            w = self.base.get_parameter(name)
            weights[name] = w * (1 + u @ v.T).view(w.shape)
        outputs: Tensor = functional_call(self.base, weights, (x,))
        return outputs
