"""Who holds which records: five ways to deal a pool of labelled records to clients, always disjoint.

Every function takes the labels (or groups) of the records that may be dealt and returns, for each client,
positions in that array. Whoever calls them decides which records those are.
"""

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedbnn.base.errors import UserError
from fedbnn.base.settings import settings

Indices = NDArray[np.int64]

DIRICHLET_DRAWS = 100
GOLDEN = (5**0.5 - 1) / 2


@settings
class PartitionSettings:
    """How the training records are dealt to the clients."""

    kind: Literal["classes", "iid", "dirichlet", "quantity", "natural"] = Field(
        default="classes",
        description="classes: each client holds a few classes; iid: equal random shares; "
        "dirichlet: class proportions differ; quantity: sizes differ; "
        "natural: one client per group of the data.",
    )
    clients: int = Field(default=20, ge=1, description='Number of clients; "natural" ignores it.')
    classes_per_client: int = Field(default=5, ge=1, description='Classes that each client holds; "classes" only.')
    records_per_class: int = Field(
        default=8,
        ge=0,
        description='Records of each of its classes a client holds; 0 shares all evenly; "classes" only.',
    )
    records_per_client: int = Field(
        default=0,
        ge=0,
        description="Records per client, on average unless iid; 0 shares all; iid, dirichlet and quantity.",
    )
    alpha: float = Field(
        default=0.5,
        gt=0,
        le=1e6,
        description="Concentration of the Dirichlet distribution, small is uneven; dirichlet and quantity.",
    )
    small_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description='Share of the clients that have little data; "classes" with records_per_class > 0 only.',
    )
    small_records_per_class: int = Field(
        default=2,
        ge=1,
        description="Records of each of its classes a client with little data keeps, of those it would hold.",
    )

    @model_validator(mode="after")
    def _small_is_possible(self) -> Self:
        if self.small_share == 0:
            return self
        share = f"partition.small_share = {self.small_share:g}"
        if self.kind != "classes" or self.records_per_class == 0:
            raise UserError(
                f'{share} needs partition.kind = "classes" and partition.records_per_class of 1 or more; here they are '
                f'"{self.kind}" and {self.records_per_class}: change them, or set partition.small_share = 0'
            )
        if self.small_records_per_class > self.records_per_class:
            raise UserError(
                f"partition.small_records_per_class = {self.small_records_per_class} is more than the others' "
                f"partition.records_per_class = {self.records_per_class} ({share}); lower it"
            )
        return self


def client_name(index: int, clients: int) -> str:
    """`client-07` of 20: padded, so that names sort as the clients are numbered."""
    return f"client-{index:0{len(str(clients - 1))}d}"


def deal_classes(clients: int, per_client: int, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A clients x classes table of who holds what, with `per_client` classes in every row.

    Each client takes the classes with the fewest holders so far, ties at random, so the numbers of holders
    of any two classes never differ by more than one.
    """
    if per_client > classes:
        raise UserError(f"partition.classes_per_client = {per_client}, but the data has {classes} classes; lower it")
    holds = np.zeros((clients, classes), dtype=np.bool_)
    for client in range(clients):
        fewest_first = np.lexsort((rng.random(classes), holds.sum(axis=0)))
        holds[client, fewest_first[:per_client]] = True
    return holds


def by_classes(
    labels: Indices,
    holds: NDArray[np.bool_],
    records_per_class: int,
    class_names: tuple[str, ...],
    rng: np.random.Generator,
) -> list[Indices]:
    """`records_per_class` records of every class that a client holds; 0 shares a class among its holders.

    Shares of one class differ by at most one record, and no holder goes without.
    """
    holders = holds.sum(axis=0)
    have = np.bincount(labels, minlength=len(holders))
    short = np.maximum(holders * max(records_per_class, 1) - have, 0)
    if short.any():
        worst = int(short.argmax())
        lower = "partition.records_per_class, " if records_per_class else "data.alignment, "
        raise UserError(
            f"too few records: class {class_names[worst]!r} has {have[worst]} for {holders[worst]} clients x "
            f"{max(records_per_class, 1)}; {short.sum()} are missing in all; "
            f"lower {lower}partition.classes_per_client or partition.clients"
        )
    dealt: list[list[Indices]] = [[] for _ in holds]
    for label in np.flatnonzero(holders):
        records = rng.permutation(np.flatnonzero(labels == label))
        if records_per_class:
            records = records[: holders[label] * records_per_class]
        # The order of holders is drawn, or the first clients would always get the odd record of every class.
        takers = rng.permutation(np.flatnonzero(holds[:, label]))
        for client, share in zip(takers, np.array_split(records, len(takers)), strict=True):
            dealt[client].append(share)
    return [np.concatenate(shares) for shares in dealt]


def small_clients(clients: int, share: float) -> Indices:
    """Who has little data: round(share x clients) of them, and all who have at a smaller share.

    They are those with the smallest fractional parts of i / golden ratio. By the three-gap theorem (Slater 1967) the
    steps from one to the next have at most three lengths, and no period of the list (two architectures in turn, say)
    falls in with them.
    """
    first = np.argsort(np.arange(clients) * GOLDEN % 1)
    return np.sort(first[: round(share * clients)])


def few_of_each_class(labels: Indices, part: Indices, few: int) -> Indices:
    """The first `few` records of every class in a client's part, in the order they were dealt in."""
    return np.concatenate([part[labels[part] == label][:few] for label in np.unique(labels[part])])


def skewed(labels: Indices, count: int, skew: float, class_names: tuple[str, ...], rng: np.random.Generator) -> Indices:
    """Which `count` rows are the first of each class, where the commonest is `skew` times as common as the rarest.

    Shares fall in equal ratios in between, share(c) ~ skew^(-rank(c) / (classes - 1)); the ranks are drawn.
    """
    classes = len(class_names)
    ranks = rng.permutation(classes)
    shares = skew ** (-ranks / max(1, classes - 1))
    counts, have = _apportion(count, shares / shares.sum()), np.bincount(labels, minlength=classes)
    if (counts > have).any():
        worst = int((counts - have).argmax())
        raise UserError(
            f"data.alignment_skew = {skew:g}: of {count} alignment points {counts[worst]} would be of class "
            f"{class_names[worst]!r}, of which {have[worst]} record(s) are free; lower it or data.alignment"
        )
    chosen = [np.flatnonzero(labels == label)[: counts[label]] for label in range(classes)]
    return np.sort(np.concatenate(chosen))


def iid(records: int, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Equal random shares: sizes differ by at most one."""
    return np.array_split(rng.permutation(records), clients)


def dirichlet(labels: Indices, clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Label skew: each class is shared over the clients in proportions p_c ~ Dir(alpha, ..., alpha).

    The Dirichlet recipe of Hsu et al. (2019) in the per-class form of Yurochkin et al. (2019), which deals
    every record exactly once. The whole deal is redrawn while it leaves a client empty.
    """
    for _ in range(DIRICHLET_DRAWS):
        dealt: list[list[Indices]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            counts = _apportion(len(members), _proportions(clients, alpha, rng))
            for shares, share in zip(dealt, np.split(members, np.cumsum(counts)[:-1]), strict=True):
                shares.append(share)
        parts = [np.concatenate(shares) for shares in dealt]
        empty = [client for client, part in enumerate(parts) if part.size == 0]
        if not empty:
            return parts
    raise UserError(
        f"partition.alpha = {alpha:g}: {client_name(empty[0], clients)} of {clients} got no record in the "
        f"last of {DIRICHLET_DRAWS} draws ({len(empty)} empty); raise partition.alpha or lower partition.clients"
    )


def quantity(records: int, clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Quantity skew: n_i = 1 + (n - clients) p_i, rounded, p ~ Dir(alpha, ..., alpha); labels stay IID."""
    sizes = 1 + _apportion(records - clients, _proportions(clients, alpha, rng))
    return np.split(rng.permutation(records), np.cumsum(sizes)[:-1])


def natural(groups: NDArray[np.str_]) -> tuple[list[Indices], tuple[str, ...]]:
    """One client per distinct group, sorted by name."""
    names, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(member, kind="stable"), np.cumsum(sizes)[:-1])
    return parts, tuple(str(name) for name in names)


def _proportions(clients: int, alpha: float, rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.dirichlet(np.full(clients, alpha))


def _apportion(total: int, proportions: NDArray[np.float64]) -> Indices:
    """Whole counts that add up to `total`: the rounded running sum of the proportions, differenced."""
    edges = np.rint(np.cumsum(proportions) * total).astype(np.int64)
    edges[-1] = total
    return np.diff(edges, prepend=0)
