"""Which records these are, whatever they are called: hashes of their content alone.

    row r = (SHA-256 of r's values, SHA-256 of r's values and its label's own text), 16 bytes of each

Values are those of the record as loaded, before any scaling, in ascending order. So the names of clients and classes,
the order of records, classes and columns, the scaling and the alignment set have no part in them: whoever writes the
terms of a run decides on all of these, and must not be able to make the same records look like others. The first half
tells whether two sets have records in common, also if these were given other labels; all second halves together are
the fingerprint of a set.

Where cells of a table become values by what others decide, the cells stand for them (`fedbnn.data.tables.raw`).

What it cannot see: the same people in other units, rounded otherwise, or with a column more or less.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbnn.data.dataset import Floats, Labels

Identity = NDArray[np.uint8]  # records x 32
HALF = 16


def identify(x: Floats, labels: Sequence[str]) -> Identity:
    """A row for each record; `labels` are the texts of their classes."""
    values = np.ascontiguousarray(x, dtype="<f4").reshape(len(x), math.prod(x.shape[1:])) + np.float32(
        0
    )  # minus zero is zero
    values[np.isnan(values)] = np.nan  # one of the many
    rows = np.empty((len(x), 2 * HALF), dtype=np.uint8)
    for row, record, label in zip(rows, values, labels, strict=True):
        digest = hashlib.sha256(np.sort(record).tobytes())
        row[:HALF] = np.frombuffer(digest.digest()[:HALF], np.uint8)
        digest.update(b"|" + label.encode())
        row[HALF:] = np.frombuffer(digest.digest()[:HALF], np.uint8)
    return rows


def fingerprint_of_set(identity: Identity) -> str:
    """Of all records with their labels, in any order."""
    return hashlib.sha256(_sorted(identity[:, HALF:])).hexdigest()


def numbering(identity: Identity, y: Labels) -> str:
    """Which number each record's class has here: another order of the classes asks another question."""
    rows = zip(identity, y, strict=True)
    return hashlib.sha256(b"".join(sorted(row.tobytes() + b"%d" % label for row, label in rows))).hexdigest()


def contents(identity: Identity) -> bytes:
    """The hashes of the values alone, in order: what is kept to see overlaps by."""
    return _sorted(identity[:, :HALF])


def overlap(one: bytes, other: bytes) -> bool:
    """Whether two sets, as `contents` gave them, have a record in common."""
    return not _split(one).isdisjoint(_split(other))


def _split(kept: bytes) -> set[bytes]:
    return {kept[at : at + HALF] for at in range(0, len(kept), HALF)}


def _sorted(halves: Identity) -> bytes:
    return b"".join(sorted(row.tobytes() for row in halves))
