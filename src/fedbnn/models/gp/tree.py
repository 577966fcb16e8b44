"""A binary tree over classes turns one choice among C into C - 1 choices of a side (GP-Tree, Achituve et al. 2021).

A node v asks whether a record belongs to the classes on its right, p_v = P(right at v), so that

    P(class c)  =  product over the nodes v on the path to c of  (p_v if c is right of v else 1 - p_v)

Where the answers of different nodes are independent, the chain rule of entropy splits over the tree as well:

    H[class]  =  sum_v P(v is reached) h(p_v),      h(p) = - p log p - (1 - p) log(1 - p)

Classes whose embeddings lie close together are told apart as late as possible: every node splits the means of its
classes by 2-means.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_ITERATIONS = 100  # of Lloyd's algorithm; a handful of means settles in two or three


@dataclass(frozen=True)
class Node:
    """One question: which side? Classes are positions 0..C-1."""

    left: tuple[int, ...]
    right: tuple[int, ...]


def build_tree(means: Tensor) -> tuple[Node, ...]:
    """The inner nodes of the tree over the rows of `means`, parents before children; one row: no node at all."""
    means = means.detach().double()
    waiting = deque([tuple(range(len(means)))])
    nodes = []
    while waiting:
        classes = waiting.popleft()
        if len(classes) > 1:
            node = _split(means, classes)
            nodes.append(node)
            waiting.extend((node.left, node.right))
    return tuple(nodes)


def leaf_probabilities(nodes: tuple[Node, ...], classes: int, right_probs: Tensor) -> Tensor:
    """P(class) [records, classes] from every node's P(right) [nodes, records]."""
    probs = right_probs.new_ones(right_probs.shape[1], classes)
    for node, right in zip(nodes, right_probs, strict=True):
        sides = torch.ones_like(probs)
        sides[:, list(node.left)] = 1 - right[:, None]
        sides[:, list(node.right)] = right[:, None]
        probs = probs * sides
    return probs


def leaf_entropy(nodes: tuple[Node, ...], right_probs: Tensor, node_entropy: Tensor) -> Tensor:
    """sum_v P(v is reached) h_v [records], from P(right) and the (expected) entropy of every node [nodes, records].

    With h_v = E[h(sigmoid(f_v))] it is the *expected* entropy of the leaf given f, exactly: reaching v depends only
    on nodes above v, and their f are independent of f_v.
    """
    total = right_probs.new_zeros(right_probs.shape[1])
    reach: dict[tuple[int, ...], Tensor] = {}
    for node, right, entropy in zip(nodes, right_probs, node_entropy, strict=True):
        reached = reach.get(tuple(sorted(node.left + node.right)), torch.ones_like(right))  # the root always is
        reach[node.left], reach[node.right] = reached * (1 - right), reached * right
        total = total + reached * entropy
    return total


def _split(means: Tensor, classes: tuple[int, ...]) -> Node:
    """2-means on the classes' means; both sides sorted, and the first class is on the left."""
    right = _two_means(means[list(classes)])
    sides = [tuple(c for c, r in zip(classes, right, strict=True) if r == side) for side in (False, True)]
    left, right_side = sorted(sides)
    return Node(left, right_side)


def _two_means(points: Tensor) -> list[bool]:
    """Lloyd's algorithm from the two points farthest apart (the first such pair): no chance is involved."""
    distance = (points[:, None] - points[None]).square().sum(2)
    first, second = divmod(int(distance.argmax()), len(points))
    centres = points[[first, second]]
    side: list[bool] = []
    for _ in range(_MAX_ITERATIONS):
        gap = (points[:, None] - centres[None]).square().sum(2)
        new = (gap[:, 1] < gap[:, 0]).tolist()
        if all(new) or not any(new):  # the points are one and the same, up to rounding: cut the list in half
            return [i >= len(points) // 2 for i in range(len(points))]
        if new == side:
            break
        side = new
        mask = torch.tensor(side)
        centres = torch.stack([points[~mask].mean(0), points[mask].mean(0)])
    return side
