"""What the ledgers in a folder say together; reading only.

Each ledger is of one set of records. A record that is in several sets was part of the releases of all of them, and
costs what these cost together. Two sets are taken to share records if they have the same fingerprint, or if they are of
one client (one folder): there, hashes show whether they really do. A record may be in sets that are linked through
others, so all that hang together in this way are counted together. What several clients hold is up to each client's
own `multiplicity`, which its charges contain.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedbnn.base.errors import UserError
from fedbnn.data.identity import overlap
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.chain import read_file
from fedbnn.privacy.cost import Budget, Cost, total
from fedbnn.privacy.ledger import RECORDS, Ledger
from fedbnn.privacy.spending import Spending

_NOTHING = Cost()


@dataclass(frozen=True)
class Entry:
    """One ledger, or why it cannot be believed.

    Attributes:
        cost: of all its releases.
        epsilon: spent, at the delta that was asked for.
        cap: the budget at the last charge; None before the first one.
        left: of the cap, at its own delta.

    """

    folder: Path
    owner: str = ""
    fingerprint: str = ""
    releases: int = 0
    cost: Cost = _NOTHING
    epsilon: float = 0.0
    cap: Budget | None = None
    left: float | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        facts = {key: value for key, value in asdict(self).items() if key not in ("folder", "problem")}
        facts["cost"] |= {"sampled": [one._asdict() for one in self.cost.sampled]}
        return {"ledger": str(self.folder), **({"error": self.problem} if self.problem else facts)}


@dataclass(frozen=True)
class Shared:
    """Ledgers that may have records in common, and what a record in all of them cost.

    Attributes:
        certain: whether some of their records are seen to be the same.

    """

    entries: tuple[Entry, ...]
    epsilon: float
    certain: bool

    def to_dict(self) -> dict[str, Any]:
        folders = [str(entry.folder) for entry in self.entries]
        return {"ledgers": folders, "same_records": self.certain, "epsilon": self.epsilon}


@dataclass(frozen=True)
class Overview:
    """All ledgers of a folder; `epsilon` is of the record that cost most, as far as ledgers can tell."""

    delta: float
    entries: tuple[Entry, ...]
    shared: tuple[Shared, ...]

    @property
    def broken(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.problem)

    @property
    def epsilon(self) -> float | None:
        """None where a ledger cannot be read: what was spent is not known then."""
        if self.broken:
            return None
        together = [shared.epsilon for shared in self.shared]
        return max([entry.epsilon for entry in self.entries] + together)

    def to_dict(self) -> dict[str, Any]:
        return {
            "delta": self.delta,
            "epsilon": self.epsilon,
            "ledgers": [entry.to_dict() for entry in self.entries],
            "shared": [shared.to_dict() for shared in self.shared],
        }


def overview(folder: Path, delta: float) -> Overview:
    """Of a run folder, a folder of ledgers, or one ledger's folder."""
    if not 0 < delta < 1:
        raise UserError(f"delta = {delta:g}: must be between 0 and 1, both excluded")
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: give a run folder, a folder of ledgers or a ledger's own folder")
    entries = tuple(_entry(place, delta) for place in ledgers_in(folder))
    if not entries:
        raise UserError(f"no ledger in {folder}: {_elsewhere(folder)}")
    return Overview(delta, entries, tuple(_shared(entries, delta)))


def _elsewhere(folder: Path) -> str:
    """Where else the ledgers of a run are."""
    try:
        privacy = json.loads((folder / "config.json").read_text(encoding="utf-8"))["privacy"]
        if privacy["ledgers"]:
            return f"this run has them elsewhere, in {privacy['ledgers']}"
        return f"nothing was released with privacy.mechanism = '{privacy['mechanism']}'"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "give a run folder, a folder of ledgers or a ledger's own folder"


def _entry(folder: Path, delta: float) -> Entry:
    try:
        spending = Ledger.read(folder)
    except UserError as error:
        return Entry(folder, problem=str(error))
    cap = spending.entries[-1].cap if spending.entries else None
    return Entry(
        folder,
        spending.owner,
        spending.fingerprint,
        len(spending.entries),
        spending.cost(),
        spending.spent(delta),
        cap,
        None if cap is None else _left(spending, cap),
    )


def _left(spending: Spending, cap: Budget) -> float:
    return max(0.0, cap.epsilon - spending.spent(cap.delta))


def _shared(entries: Iterable[Entry], delta: float) -> Iterable[Shared]:
    left = [entry for entry in entries if not entry.problem]
    while left:
        group, certain = [left.pop(0)], False
        for one in group:  # grows while it is gone through
            links = {other.folder: _link(one, other) for other in left}
            certain |= "seen" in links.values()
            group += [other for other in left if links[other.folder]]
            left = [other for other in left if not links[other.folder]]
        if len(group) > 1:
            group.sort(key=lambda entry: entry.folder)
            yield Shared(tuple(group), total(entry.cost for entry in group).epsilon(delta), certain)


def _link(one: Entry, other: Entry) -> Literal["seen", "possible", ""]:
    """Whether two sets share records, as far as can be seen."""
    if one.fingerprint == other.fingerprint:
        return "seen"
    nested = one.folder.parent in other.folder.parents or other.folder.parent in one.folder.parents
    if not nested:
        return ""
    kept = [read_file(entry.folder / RECORDS) or b"" for entry in (one, other)]
    return "seen" if overlap(*kept) else "possible"
