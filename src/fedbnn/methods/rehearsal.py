"""Rehearsal: local training keeps seeing the consensus.

The Gaussian p(.; psi*) forgets which of its weights matter together, so local training can leave what peers taught
about classes the client does not hold. Rehearsal adds to the loss of every step

    weight * mean over some points x of the alignment set of CE(target(x), f(x; w)),

which for FedBNN is the same objective under the prior p(w; psi*) exp(-n_i * weight / kl_weight * mean CE over AD): a
prior on outputs, not only on weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.base.randomness import Stream
from fedbnn.federation.parties import Client
from fedbnn.models.regression import Measured
from fedbnn.models.training import Records, epochs, steps


@dataclass(frozen=True)
class Rehearsal:
    """Alignment points with their targets, and the weight of their mean loss."""

    consensus: Records
    weight: float


def local_batches(
    client: Client, passes: int, rng: Stream, rehearsal: Rehearsal | None = None, offset: Tensor | None = None
) -> Iterator[Records]:
    """Minibatches of `passes` epochs over the client's records, each joined by one of the consensus to rehearse.

    `offset` is that of own records' logits.
    """
    size, augment = client.training.batch_size, client.training.augment
    own = epochs(client.train, passes, size, rng.child("order").torch(), augment)
    if offset is not None:
        own = (replace(batch, offset=offset) for batch in own)
    if rehearsal is None:
        return own
    count = passes * -(-len(client.train) // size)
    others = steps(rehearsal.consensus, count, size, rng.child("beside").torch(), augment)
    return map(partial(mixed, weight=rehearsal.weight, classes=client.classes), own, others)


def mixed(own: Records, other: Records, weight: float, classes: int) -> Records:
    """One minibatch whose mean cross-entropy is that of `own` plus `weight` times that of `other`.

    Cross-entropy is linear in the target, so weights of records can be carried by their targets.
    """
    if isinstance(own, Measured) and isinstance(other, Measured):
        return own.beside(other, weight)
    rows = len(own) + len(other)
    labels = one_hot(own.y, classes) * (rows / len(own))
    targets = torch.cat([labels, other.y * (weight * rows / len(other))])
    offset = None
    if own.offset is not None:
        offset = torch.cat([own.offset.expand(len(own), -1), own.offset.new_zeros(len(other), classes)])
    return Records(torch.cat([own.x, other.x]), targets, offset)
