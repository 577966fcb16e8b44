"""Made-up records that resemble those of all clients, under differential privacy: a Gaussian copula from noisy sums.

An alignment set for tables where no public one exists (after Li, Xiong, Jiang 2014). A column's public range is cut
into cells. Two sums over records leave each client, with noise as all that leaves (`privacy.sums`):

    1.  counts of every cell of every column: a record adds one to a cell of each of d, so ||v|| = sqrt(d)
    2.  z_i z_j for all columns i < j, cut to ||z|| <= c: ||v||^2 = (||z||^4 - sum z_i^4) / 2, so ||v|| <= c^2 / sqrt(2)

Joined, the counts give each column's shares p_b (projected onto the simplex), and these the normal score of a cell,

    z_b = Phi^-1(p_1 + ... + p_(b-1) + p_b / 2),

of which the second sum takes those of a record's cells. With n the noisy number of records, and a_j = E[Z z(Z)] for a
normal Z and the score of its cell, it gives the correlations R_ij = S_ij / (n a_i a_j): exact if one of the two columns
is not cut into cells, else up to terms of R^2 and above. They are brought to a matrix without negative eigenvalues.

A made-up record: normal numbers of these correlations, each put into the cell of its column where its share of the
normal distribution lies, and uniform within that. Values that are missing have a cell of their own and the score 0;
they are taken to be missing by chance, so that n counts the records that have both. Both sums are whole numbers that
add up exactly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from fedbnn.features.public import digest_of
from fedbnn.privacy.account import Account
from fedbnn.privacy.cost import Cost
from fedbnn.privacy.plan import Plan
from fedbnn.privacy.simplex import onto_simplex
from fedbnn.privacy.sums import MARGIN, UNIT, gap_of, grid_sum, with_noise

Doubles = NDArray[np.float64]
Cells = NDArray[np.int64]

CELLS = 16  # of a column of numbers
RELEASES = 2
_TAIL = 2.5  # scores beyond it are cut off: of so few records little is known
_LEAST = 1e-3  # eigenvalue of a correlation matrix


@dataclass(frozen=True)
class Column:
    """A column as all parties know it before any record is looked at: numbers within a range, or one of some levels.

    `levels` counts the latter (0: numbers); a cell more stands for a value that is missing, if one may be.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    levels: int = 0
    may_miss: bool = False

    def __post_init__(self) -> None:
        if not self.levels and not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"column '{self.name}': the range {self.low:g} to {self.high:g} is none")

    @property
    def cells(self) -> int:
        return (self.levels or CELLS) + self.may_miss

    def cell_of(self, values: Doubles) -> Cells:
        """The cell of each value, whatever it is; what lies outside the range counts as its end."""
        inside = self.cells - self.may_miss
        share = values if self.levels else (values - self.low) / (self.high - self.low) * CELLS
        cell = np.floor(np.nan_to_num(share, nan=0.0, posinf=inside, neginf=0.0).clip(0, inside - 1)).astype(np.int64)
        missing = np.isnan(values)
        return np.where(missing, inside, cell) if self.may_miss else cell

    def values_of(self, cells: Cells, within: Doubles) -> Doubles:
        """A value in each cell, at this share of its width."""
        return cells.astype(np.float64) if self.levels else self.low + (cells + within) * (self.high - self.low) / CELLS


@dataclass(frozen=True)
class Marginals:
    """Shares of the cells of each column among values that are there, shares of missing ones, and how many records."""

    shares: tuple[Doubles, ...]
    missing: tuple[float, ...]
    records: float

    @classmethod
    def of(cls, columns: Sequence[Column], counts: Doubles) -> "Marginals":
        """From the noisy counts of all columns, one after the other."""
        parts = np.split(counts, np.cumsum([column.cells for column in columns])[:-1])
        records = max(1.0, float(np.mean([part.sum() for part in parts])))
        whole = [onto_simplex(torch.from_numpy(part / records)[None])[0].numpy() for part in parts]
        missing = [float(p[-1]) if column.may_miss else 0.0 for p, column in zip(whole, columns, strict=True)]
        there = [p[: len(p) - column.may_miss] for p, column in zip(whole, columns, strict=True)]
        shares = [p / p.sum() if p.sum() > 0 else np.full(len(p), 1 / len(p)) for p in there]
        return cls(tuple(shares), tuple(missing), records)

    def scores(self) -> list[Doubles]:
        """The normal score of each cell, and 0 for a value that is missing."""
        inner = [ndtri(np.clip(np.cumsum(p) - p / 2, ndtr(-_TAIL), ndtr(_TAIL))) for p in self.shares]
        return [np.append(z, 0.0) for z in inner]

    def scale(self) -> Doubles:
        """The n a_i a_j: about what the sum of products is for each unit of correlation."""
        known = []
        for p, z, missing in zip(self.shares, self.scores(), self.missing, strict=True):
            ends = np.exp(-(ndtri(np.clip(np.append(0.0, np.cumsum(p)), 0, 1)) ** 2) / 2) / math.sqrt(2 * math.pi)
            known.append((1 - missing) * float(z[:-1] @ (ends[:-1] - ends[1:])))
        return self.records * np.multiply.outer(known, known)


@dataclass(frozen=True)
class Copula:
    """What made-up records are drawn from. It came out of releases: nothing made of it costs more."""

    columns: tuple[Column, ...]
    marginals: Marginals
    correlations: Doubles

    @classmethod
    def of(cls, columns: Sequence[Column], marginals: Marginals, products: Doubles) -> "Copula":
        """From the noisy sums of z_i z_j, i < j."""
        found = np.eye(len(columns))
        above = np.triu_indices(len(columns), 1)
        scale = marginals.scale()[above]  # 0 for a column that is always the same
        found[above] = np.where(scale > 0, products / np.where(scale > 0, scale, 1), 0).clip(-1, 1)
        return cls(tuple(columns), marginals, _correlation(np.triu(found) + np.triu(found, 1).T))

    def sample(self, count: int, seed: int) -> Doubles:
        """`count` made-up records; levels as whole numbers, missing values as NaN."""
        rng = np.random.default_rng([seed, *b"copula"])
        drawn = ndtr(rng.multivariate_normal(np.zeros(len(self.columns)), self.correlations, count, method="eigh"))
        within, missing = rng.random((2, *drawn.shape))
        made = np.empty_like(drawn)
        for at, (column, shares) in enumerate(zip(self.columns, self.marginals.shares, strict=True)):
            ends = np.cumsum(shares)
            cells = np.searchsorted(ends, drawn[:, at] * ends[-1], side="right").clip(max=len(shares) - 1)
            made[:, at] = column.values_of(cells, within[:, at])
        return np.where(missing < self.marginals.missing, np.nan, made)


def _correlation(matrix: Doubles) -> Doubles:
    """With eigenvalues of at least a thousandth, and ones on the diagonal."""
    values, vectors = np.linalg.eigh(matrix)
    positive = (vectors * np.maximum(values, _LEAST)) @ vectors.T
    spread = np.sqrt(np.diag(positive))
    found: Doubles = positive / np.multiply.outer(spread, spread)
    return found


def count_sensitivity(columns: Sequence[Column]) -> float:
    """How far one record moves the counts, in Euclidean norm."""
    return math.sqrt(len(columns))


def longest(columns: Sequence[Column]) -> float:
    """c, the length to which a record's scores are cut: few of d independent normal numbers are longer together."""
    d = len(columns)
    return math.sqrt(d + 2 * math.sqrt(2 * d))


def product_sensitivity(columns: Sequence[Column]) -> float:
    """How far one record moves the sum of products; 1 where there is only one column, and no product."""
    return longest(columns) ** 2 / math.sqrt(2) if len(columns) > 1 else 1.0


@dataclass(frozen=True)
class CopulaGate:
    """A client's way out for the two sums: each is charged to its ledger before its noise is drawn.

    Attributes:
        values: its records, one row each, as `Column` has them; labels have no part.
        plan: the budget, divided into two releases; every client's the same.

    """

    columns: tuple[Column, ...]
    values: Doubles
    plan: Plan
    account: Account

    def counts(self) -> Tensor:
        """Noisy counts of all cells, in units of the grid."""
        return self._release(
            "counts", sum(column.cells for column in self.columns), count_sensitivity(self.columns), self._counted
        )

    def products(self, marginals: Marginals) -> Tensor:
        """Noisy sums of products of scores under these marginals, in units of the grid."""
        d = len(self.columns)
        question = digest_of("products", *(torch.from_numpy(shares) for shares in marginals.shares))
        return self._release(
            question, d * (d - 1) // 2, product_sensitivity(self.columns), lambda: self._multiplied(marginals)
        )

    def _release(self, question: str, numbers: int, sensitivity: float, total: Callable[[], Tensor]) -> Tensor:
        sd = self.plan.noise_multiplier * (1 + MARGIN) * sensitivity
        cost = Cost(self.plan.mu, gap=self.plan.multiplicity * gap_of(sd, numbers, "discrete"))
        inputs = digest_of("copula", question, repr(self.columns), sd)
        data = self.account.release(inputs, cost, lambda: with_noise(total(), sd, "discrete").numpy().tobytes())
        return torch.frombuffer(bytearray(data), dtype=torch.int64)

    def _cells(self) -> list[Cells]:
        return [column.cell_of(self.values[:, at]) for at, column in enumerate(self.columns)]

    def _counted(self) -> Tensor:
        counted = [
            np.bincount(cells, minlength=column.cells)
            for column, cells in zip(self.columns, self._cells(), strict=True)
        ]
        return torch.from_numpy(np.concatenate(counted)) * round(1 / UNIT)

    def _multiplied(self, marginals: Marginals) -> Tensor:
        scores = [z[cells] for z, cells in zip(marginals.scores(), self._cells(), strict=True)]
        # Column by column, number by number: what a record adds does not depend on which others there are.
        squares = np.zeros(len(self.values))
        for column in scores:
            squares += column * column
        # Shortened by a hair more, so that rounding cannot make a record longer than it may be.
        factor = np.minimum(1.0, longest(self.columns) ** 2 * (1 - 1e-9) / np.maximum(squares, 1e-30))
        above = np.triu_indices(len(self.columns), 1)
        products = [scores[i] * scores[j] * factor for i, j in zip(*above, strict=True)]
        return grid_sum(torch.from_numpy(np.stack(products, axis=1))) if products else torch.zeros(0).long()


def fit_copula(gates: Sequence[CopulaGate]) -> Copula:
    """From the two sums of all clients, joined as a server would."""
    columns = gates[0].columns
    joined = torch.stack([gate.counts() for gate in gates]).sum(0).numpy() * UNIT
    marginals = Marginals.of(columns, joined)
    products = torch.stack([gate.products(marginals) for gate in gates]).sum(0).numpy() * UNIT
    return Copula.of(columns, marginals, products)
