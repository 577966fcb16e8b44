"""What attackers make of what they would have sent: number for number, in whatever form was agreed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Distributions, Message, Numbers, UploadSpec

Lie = Callable[[str, Tensor], Tensor]
"""From the name of an array and what an honest client would have sent under it to what is sent."""


def changed(own: Message, agreed: UploadSpec, lie: Lie) -> Message:
    """The message with this lie in all that is of weights or outputs; numbers of records are as they were."""
    arrays = dict(own.arrays)
    for name, form in agreed.items():
        if isinstance(form, Distributions):
            arrays[name] = on_simplex(lie(name, arrays[name]))
        elif name != "records" and not (isinstance(form, Numbers) and form.low >= 0):
            arrays[name] = lie(name, arrays[name])
    return Message(arrays)


def stacked(messages: Sequence[Message], name: str) -> Tensor:
    """The arrays of this name."""
    found = [message.arrays[name] for message in messages if name in message.arrays]
    return torch.stack(found) if found else torch.zeros(0)


def random(array: Tensor, rng: Stream) -> Tensor:
    spread = float(array.std()) if array.numel() > 1 else 1.0
    return torch.randn(array.shape, generator=rng.torch()) * spread + array.mean()


def further(array: Tensor, start: Tensor | None, times: float) -> Tensor:
    """Weights that have gone that many times as far from where they began; outputs as many times as large."""
    outputs = array.dim() > 1
    return times * array if outputs or start is None else start + times * (array - start)


def pushed(array: Tensor, honest: Tensor, target: int) -> Tensor:
    """Outputs that say that every point is of this class, with the largest logit that anybody honest sends."""
    largest = float(honest.abs().max()) if len(honest) else float(array.abs().max())
    found = torch.full_like(array, -largest / (array.shape[-1] - 1))
    found[..., target] = largest
    return found


def on_simplex(lie: Tensor) -> Tensor:
    positive = (lie - lie.amin(-1, keepdim=True).clamp_max(0)).clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, positive / total.clamp_min(1e-30), torch.full_like(lie, 1 / lie.shape[-1]))
