"""Minibatches, and the plain (deterministic) training loop on a flat network."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedbnn.base.settings import settings
from fedbnn.models.augmentation import Augment, augmented
from fedbnn.models.network import FlatNetwork


@settings
class TrainingSettings:
    """The budget of local training: the same for every method, so that methods are compared at equal cost."""

    local_epochs: int = Field(default=20, ge=1, description="passes over a client's own records in each round")
    warmup_epochs: int = Field(
        default=50, ge=0, description="passes over a client's own records before the first exchange (round 0)"
    )
    batch_size: int = Field(default=32, ge=1, description="records in a minibatch of local training")

    augment: Augment = Field(
        default="none",
        description="how images are varied each time a client sees them in training, own and alignment points alike: "
        "flip (mirrored left to right by chance), shift (moved by up to two pixels), flip_shift, or none; steps under "
        "DP-SGD and distillation at the server use them as they are",
    )

    def passes(self, round_number: int) -> int:
        """Epochs of local training in this round; round 0 is the warm-up."""
        return self.warmup_epochs if round_number == 0 else self.local_epochs


@dataclass(frozen=True)
class Records:
    """Inputs with labels, or with a probability over the classes for each input.

    `offset` is what a loss adds to a model's logits, for all alike or for each input; None: nothing.
    """

    x: Tensor
    y: Tensor
    offset: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"<{len(self)} records of shape {tuple(self.x.shape[1:])}>"

    def to(self, device: torch.device) -> "Records":
        return Records(self.x.to(device), self.y.to(device))

    def take(self, index: Tensor) -> "Records":
        return Records(take_rows(self.x, index), self.y[index])

    def varied(self, how: Augment, generator: torch.Generator) -> "Records":
        return self if how == "none" else Records(augmented(self.x, how, generator), self.y)

    def loss(self, logits: Tensor) -> Tensor:
        """The mean cross-entropy of a model's logits for these inputs."""
        return functional.cross_entropy(logits if self.offset is None else logits + self.offset, self.y)


def channels_last(x: Tensor) -> Tensor:
    """Images in the layout of the fast convolution kernels; anything else as it is. Always a fresh, aligned copy."""
    if x.dim() == 4:
        return x.clone(memory_format=torch.channels_last)
    return x.clone(memory_format=torch.contiguous_format)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """`x[index]`, keeping images channels-last (plain indexing would re-lay them)."""
    if x.dim() == 4:
        return x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return x.index_select(0, index)


def epochs(
    records: Records, passes: int, batch_size: int, generator: torch.Generator, augment: Augment = "none"
) -> Iterator[Records]:
    """Minibatches of `passes` passes over the records, each pass in a new random order."""
    for _ in range(passes):
        order = torch.randperm(len(records), generator=generator, device=generator.device)
        for index in order.split(batch_size):
            yield records.take(index).varied(augment, generator)


def steps(
    records: Records, count: int, batch_size: int, generator: torch.Generator, augment: Augment = "none"
) -> Iterator[Records]:
    """Exactly `count` minibatches, going round the records in a new random order each time."""
    done = 0
    while done < count:
        order = torch.randperm(len(records), generator=generator, device=generator.device)
        for index in order.split(batch_size)[: count - done]:
            yield records.take(index).varied(augment, generator)
            done += 1


@dataclass(frozen=True)
class Pull:
    """The penalty 1/2 sum_k strength_k (w_k - centre_k)^2 on the weights."""

    centre: Tensor
    strength: float | Tensor

    def add_gradient(self, weights: Tensor, gradient: Tensor) -> None:
        """Its gradient strength * (w - centre), with the weights as they are now, added to `gradient`."""
        apart = weights - self.centre
        if isinstance(self.strength, Tensor):
            gradient.addcmul_(apart, self.strength)
        else:
            gradient.add_(apart, alpha=self.strength)


def adam(
    network: FlatNetwork, weights: Tensor, learning_rate: float, weight_decay: float, part: slice = slice(None)
) -> torch.optim.Optimizer:
    """Adam, begun anew, that moves `part` of the network's weights from `weights` by what lies in its gradient."""
    network.train()
    network.weights.copy_(weights)
    parameter = torch.nn.Parameter(network.weights[part], requires_grad=False)
    parameter.grad = network.gradient[part]
    return torch.optim.Adam([parameter], lr=learning_rate, weight_decay=weight_decay, fused=True)


def gradient_at(network: FlatNetwork, weights: Tensor, batch: Records) -> tuple[Tensor, Tensor]:
    """The gradient of the batch's loss at these weights, and the loss."""
    network.weights.copy_(weights)
    network.gradient.zero_()
    loss = batch.loss(network(batch.x))
    loss.backward()
    return network.gradient.clone(), loss.detach()


def fit_point(
    network: FlatNetwork,
    weights: Tensor,
    batches: Iterator[Records],
    *,
    learning_rate: float,
    weight_decay: float,
    pull: Pull | None = None,
    loss_of: Callable[[Records], Tensor] | None = None,
    part: slice = slice(None),
    visit: Callable[[Tensor], object] | None = None,
) -> tuple[Tensor, float]:
    """Minimise the cross-entropy over the batches, or `loss_of` them, plus the pull, by Adam from `weights`.

    Only `part` of the weights moves. Returns the new weights and the last minibatch's loss without the pull. `visit` is
    shown the weights after every step, in a buffer that the next step overwrites.
    """
    optimiser = adam(network, weights, learning_rate, weight_decay, part)
    loss = torch.zeros(())
    for batch in batches:
        network.gradient.zero_()
        loss = batch.loss(network(batch.x)) if loss_of is None else loss_of(batch)
        loss.backward()
        if pull:
            pull.add_gradient(network.weights, network.gradient)
        optimiser.step()
        if visit:
            visit(network.weights)
    return network.weights.clone(), float(loss.detach())


def descend(
    network: FlatNetwork,
    weights: Tensor,
    batches: Iterator[Records],
    *,
    rate: float,
    pull: Pull | None = None,
    slope: Tensor | None = None,
    visit: Callable[[Tensor], object] | None = None,
) -> tuple[Tensor, float, int]:
    """Plain gradient steps w <- w - rate (g + slope) from `weights`, g the gradient of a batch's loss and the pull.

    For methods that are made of gradients, whose scale Adam would take away. Returns the new weights, the last
    minibatch's loss and the number of steps. `visit` is shown the weights after every step, and may move them: the next
    step begins where it leaves them.
    """
    network.train()
    network.weights.copy_(weights)
    loss, count = torch.zeros(()), 0
    for batch in batches:
        network.gradient.zero_()
        loss = batch.loss(network(batch.x))
        loss.backward()
        if pull:
            pull.add_gradient(network.weights, network.gradient)
        if slope is not None:
            network.gradient.add_(slope)
        network.weights.sub_(network.gradient, alpha=rate)
        count += 1
        if visit:
            visit(network.weights)
    return network.weights.clone(), float(loss.detach()), count
