"""Networks for sequences: steps in time, each with some values.

A record T x F is T steps of F values; of a picture every row is a step; a plain row of numbers is cut into `steps`
equal pieces, or is one value a step.
"""

import torch
from torch import Tensor, nn

from fedbnn.base.errors import UserError


class Steps(nn.Module):
    """Records as steps [n, steps, values]."""

    def __init__(self, name: str, input_shape: tuple[int, ...], steps: int) -> None:
        super().__init__()
        match input_shape:
            case (length,):
                steps = steps or length
                if steps < 1 or length % steps:
                    raise UserError(f"model '{name}': {length} values cannot be cut into steps = {steps} equal pieces")
                self.shape = (steps, length // steps)
            case (time, values) if steps in (0, time):
                self.shape = (time, values)
            case (channels, height, width) if steps in (0, height):
                self.shape = (height, channels * width)
            case _:
                raise UserError(f"model '{name}': steps = {steps} does not fit records of shape {input_shape}")

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 4:
            x = x.transpose(1, 2)
        return x.reshape(-1, *self.shape)


class Recurrent(nn.Module):
    """The last state of a recurrent layer, and a linear layer on it."""

    def __init__(self, steps: Steps, hidden: int, classes: int) -> None:
        super().__init__()
        self.steps = steps
        self.recurrent = nn.GRU(steps.shape[1], hidden, batch_first=True)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.recurrent(self.steps(x))
        logits: Tensor = self.last(state[0])
        return logits


class Attentive(nn.Module):
    """Layers in which every step looks at all others, their mean over time, and a linear layer on it."""

    def __init__(self, steps: Steps, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        count, values = steps.shape
        self.steps = steps
        self.into = nn.Linear(values, width)
        self.place = nn.Parameter(torch.randn(count, width))  # which step it is
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(layers)
            )
        )
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.layers(self.into(self.steps(x)) + self.place).mean(1))
        return logits


def gru(input_shape: tuple[int, ...], classes: int, hidden: int = 32, steps: int = 0) -> nn.Module:
    """Gated recurrent units (Cho et al. 2014) over the steps of a sequence; any input."""
    return Recurrent(Steps("gru", input_shape, steps), hidden, classes)


def transformer(
    input_shape: tuple[int, ...], classes: int, width: int = 32, heads: int = 4, layers: int = 1, steps: int = 0
) -> nn.Module:
    """Attention (Vaswani et al. 2017) between the steps of a sequence, normalised first; any input."""
    if width % heads:
        raise UserError(f"model 'transformer': width = {width} must be a multiple of heads = {heads}")
    return Attentive(Steps("transformer", input_shape, steps), width, heads, layers, classes)
