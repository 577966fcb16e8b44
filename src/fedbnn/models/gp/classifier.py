"""The classifier of pFedGP: a tree of binary Gaussian processes on embeddings (Achituve et al. 2021).

The network's embedding is what training shares; the classifier itself has no weights. It *is* the client's records:
each node of the client's tree over its own classes conditions on the records of the node's classes, and asks for the
side of a new one. Nodes are independent, so the probability of a class is a product over its path (see `tree`).

The embedding is trained by prediction: at each node half of the records, drawn class by class, predict the other half.

    loss = sum_v (n_v / n) * mean over v's predicted records of -log P(side)

n_v being the records of v's classes and n all of them. This estimates the mean of -log P(class) over the client's
records, whatever its number of classes or records, so a learning rate means the same for every client.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedbnn.models.gp.kernel import Kernel, normalise
from fedbnn.models.gp.polya_gamma import gibbs
from fedbnn.models.gp.predictive import Conditioned, condition, expected_entropy, latent, log_likelihood, probability
from fedbnn.models.gp.tree import Node, build_tree, leaf_entropy, leaf_probabilities

_CHUNK = 2**20  # numbers (chains x seen records x new records) worked on at once: 8 MB


@dataclass(frozen=True)
class GPSettings:
    """The prior, and how it is sampled: `chains` independent Gibbs chains of `gibbs_steps` steps."""

    kernel: Kernel = field(default_factory=Kernel)
    chains: int = 20
    gibbs_steps: int = 5


@dataclass(frozen=True)
class ClassTree:
    """A tree over the classes somebody holds: position i of the tree's leaves is the class `classes[i]`."""

    classes: tuple[int, ...]
    nodes: tuple[Node, ...]

    def positions(self, labels: Tensor) -> Tensor:
        """The leaf of every label; all labels must be among the tree's classes."""
        held = torch.tensor(self.classes)
        positions = torch.searchsorted(held, labels).clamp_max(len(held) - 1)
        if not torch.equal(held[positions], labels):
            raise ValueError("a label is not among the classes of the tree")
        return positions


def fit_tree(embeddings: Tensor, labels: Tensor) -> ClassTree:
    """The tree over the classes among `labels`, by the means of their normalised embeddings."""
    classes, position = labels.unique(return_inverse=True)
    with torch.no_grad():
        x = normalise(embeddings)
        means = torch.stack([x[position == i].mean(0) for i in range(len(classes))])
    return ClassTree(tuple(classes.tolist()), build_tree(means))


def tree_loss(
    embeddings: Tensor,
    labels: Tensor,
    tree: ClassTree,
    settings: GPSettings,
    torch_rng: torch.Generator,
    numpy_rng: np.random.Generator,
) -> Tensor:
    """The loss above, differentiable in the embeddings; labels are global class ids.

    A class with one record is only conditioned on. A node is left out if nothing remains to predict or if all of its
    records are on one side (as a minibatch may have it); a loss without any node is zero, with zero gradient.
    """
    x = normalise(embeddings)
    position = tree.positions(labels)
    loss = x.sum() * 0
    for records, right in _sides(tree, position):
        predicted = _half(position[records], torch_rng)
        if not predicted.any() or right.all() or not right.any():
            continue
        given, asked = x[records[~predicted]], x[records[predicted]]
        node = _condition(given, right[~predicted], settings, torch_rng, numpy_rng)
        kernel = settings.kernel
        f = latent(node, kernel.cross(given, asked), kernel.outputscale)
        loss = loss - len(records) / len(x) * log_likelihood(f, right[predicted]).mean()
    return loss.to(embeddings.dtype)


@torch.no_grad()
def predict_tree(
    train_embeddings: Tensor,
    labels: Tensor,
    test_embeddings: Tensor,
    classes_total: int,
    tree: ClassTree,
    settings: GPSettings,
    torch_rng: torch.Generator,
    numpy_rng: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Class probabilities [m, classes_total], zero for classes not held, and the aleatoric part of their entropy [m].

    Aleatoric is the expected entropy of the class given every node's f. One class held: it is certain, without a GP.
    A node whose classes have no records here answers from its prior.
    """
    seen, new = normalise(train_embeddings), normalise(test_embeddings)
    right_probs, entropies = new.new_zeros(2, len(tree.nodes), len(new))
    for i, (records, right) in enumerate(_sides(tree, tree.positions(labels))):
        given = seen[records]
        node = _condition(given, right, settings, torch_rng, numpy_rng)
        chunk = max(1, _CHUNK // max(1, settings.chains * len(records)))
        for part in torch.arange(len(new)).split(chunk):
            f = latent(node, settings.kernel.cross(given, new[part]), settings.kernel.outputscale)
            right_probs[i, part], entropies[i, part] = probability(f), expected_entropy(f)
    probs = new.new_zeros(len(new), classes_total)
    probs[:, list(tree.classes)] = leaf_probabilities(tree.nodes, len(tree.classes), right_probs)
    return probs.float(), leaf_entropy(tree.nodes, right_probs, entropies).float()


def subset(labels: Tensor, cap: int, generator: torch.Generator) -> Tensor:
    """The sorted index of at most `cap` records, drawn at random and as evenly over the classes as these allow.

    Records are taken in rounds, one of every class that has any left, until the cap is reached.
    """
    if len(labels) <= cap:
        return torch.arange(len(labels))
    shuffled = torch.randperm(len(labels), generator=generator)
    turn = torch.empty_like(shuffled)  # the round in which a record is taken
    for label in labels.unique():
        mine = labels[shuffled] == label
        turn[mine] = torch.arange(int(mine.sum()))
    return shuffled[turn.argsort(stable=True)[:cap]].sort().values


def _sides(tree: ClassTree, position: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For every node the index of its classes' records, and which of these are on the right."""
    for node in tree.nodes:
        right = torch.isin(position, torch.tensor(node.right))
        records = (right | torch.isin(position, torch.tensor(node.left))).nonzero()[:, 0]
        yield records, right[records]


def _half(classes: Tensor, generator: torch.Generator) -> Tensor:
    """A mask of half of the records of every class, at random; of an odd number the larger half is left out."""
    mask = torch.zeros(len(classes), dtype=torch.bool)
    for label in classes.unique():
        mine = (classes == label).nonzero()[:, 0]
        mask[mine[torch.randperm(len(mine), generator=generator)[: len(mine) // 2]]] = True
    return mask


def _condition(
    x: Tensor, right: Tensor, settings: GPSettings, torch_rng: torch.Generator, numpy_rng: np.random.Generator
) -> Conditioned:
    kernel = settings.kernel
    covariance = kernel.covariance(x)
    omega = gibbs(
        covariance,
        right,
        kernel.mean,
        chains=settings.chains,
        steps=settings.gibbs_steps,
        torch_rng=torch_rng,
        numpy_rng=numpy_rng,
    )
    return condition(covariance, right, omega, kernel.mean)
