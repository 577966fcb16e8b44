"""Images seen a little differently each time: mirrored, or moved by up to two pixels. The same for every method."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Augment = Literal["none", "flip", "shift", "flip_shift"]

REACH = 2  # pixels


def augmented(x: Tensor, how: Augment, generator: torch.Generator) -> Tensor:
    """A minibatch of images (N x C x H x W): each mirrored left to right with probability 1/2, all moved alike.

    One move for the whole minibatch costs next to nothing, and there are many minibatches. Pixels that come in from
    outside repeat the border: zero is not black once images are normalised.
    """
    if "flip" in how:
        mirrored = torch.rand(len(x), generator=generator, device=generator.device) < 0.5
        x = torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)
    if "shift" in how:
        height, width = x.shape[2:]
        move = torch.randint(0, 2 * REACH + 1, (2,), generator=generator, device=generator.device)
        down, right = (int(pixels) for pixels in move)
        framed = functional.pad(x, (REACH, REACH, REACH, REACH), mode="replicate")
        x = framed[:, :, down : down + height, right : right + width]
    return x.contiguous(memory_format=torch.channels_last)
