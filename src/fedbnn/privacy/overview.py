"""What the ledgers in a folder say together; reading only.

Each ledger is of one set of records. A record that is in several sets was part of the releases of all of them:

    mu^2 = sum over these ledgers of their mu^2

Which records two sets share, ledgers do not tell. Sets of one client (one folder) may share some, and sets with the
same fingerprint are the same records, so for these it is said what a record in all of them cost.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.privacy.accountant import gaussian_epsilon
from fedbnn.privacy.chain import HEAD, LINES
from fedbnn.privacy.ledger import Ledger
from fedbnn.privacy.spending import Budget, Spending

_STORED = "releases"


@dataclass(frozen=True)
class Account:
    """One ledger, or why it cannot be believed.

    Attributes:
        epsilon: spent, at the delta that was asked for.
        cap: the budget at the last charge; None before the first one.
        left: of the cap, at its own delta.

    """

    folder: Path
    owner: str = ""
    fingerprint: str = ""
    releases: int = 0
    mu: float = 0.0
    epsilon: float = 0.0
    cap: Budget | None = None
    left: float | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        facts = {key: value for key, value in asdict(self).items() if key not in ("folder", "problem")}
        return {"ledger": str(self.folder), **({"error": self.problem} if self.problem else facts)}


@dataclass(frozen=True)
class Shared:
    """Ledgers whose records are the same (`certain`), or may be in part, and what a record in all of them cost."""

    accounts: tuple[Account, ...]
    epsilon: float
    certain: bool

    def to_dict(self) -> dict[str, Any]:
        folders = [str(account.folder) for account in self.accounts]
        return {"ledgers": folders, "same_records": self.certain, "epsilon": self.epsilon}


@dataclass(frozen=True)
class Overview:
    """All ledgers of a folder; `epsilon` is of the record that cost most, as far as ledgers can tell."""

    delta: float
    accounts: tuple[Account, ...]
    shared: tuple[Shared, ...]

    @property
    def broken(self) -> tuple[Account, ...]:
        return tuple(account for account in self.accounts if account.problem)

    @property
    def epsilon(self) -> float | None:
        """None where a ledger cannot be read: what was spent is not known then."""
        if self.broken:
            return None
        together = [shared.epsilon for shared in self.shared]
        return max([account.epsilon for account in self.accounts] + together)

    def to_dict(self) -> dict[str, Any]:
        return {
            "delta": self.delta,
            "epsilon": self.epsilon,
            "ledgers": [account.to_dict() for account in self.accounts],
            "shared": [shared.to_dict() for shared in self.shared],
        }


def overview(folder: Path, delta: float) -> Overview:
    """Of a run folder, a folder of ledgers, or one ledger's folder."""
    if not 0 < delta < 1:
        raise UserError(f"delta = {delta:g}: must be between 0 and 1, both excluded")
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: give a run folder, a folder of ledgers or a ledger's own folder")
    accounts = tuple(_account(place, delta) for place in ledgers_in(folder))
    if not accounts:
        raise UserError(f"no ledger in {folder}: {_elsewhere(folder)}")
    return Overview(delta, accounts, tuple(_shared(accounts, delta)))


def ledgers_in(folder: Path) -> list[Path]:
    """Every folder that holds a ledger or what is left of one, this one included."""
    folders = {path.parent for name in (LINES, HEAD) for path in folder.rglob(name)}
    folders |= {path.parent.parent for path in folder.rglob(f"{_STORED}/*.bin")}
    return sorted(folders)


def _elsewhere(folder: Path) -> str:
    """Where else the ledgers of a run are."""
    try:
        privacy = json.loads((folder / "config.json").read_text(encoding="utf-8"))["privacy"]
        if privacy["ledgers"]:
            return f"this run has them elsewhere, in {privacy['ledgers']}"
        return f"nothing was released with privacy.mechanism = '{privacy['mechanism']}'"
    except (OSError, ValueError, KeyError, TypeError):
        return "give a run folder, a folder of ledgers or a ledger's own folder"


def _account(folder: Path, delta: float) -> Account:
    try:
        spending = Ledger.read(folder)
    except UserError as error:
        return Account(folder, problem=str(error))
    cap = spending.entries[-1].cap if spending.entries else None
    return Account(
        folder,
        spending.owner,
        spending.fingerprint,
        len(spending.entries),
        spending.mu,
        spending.spent(delta),
        cap,
        None if cap is None else _left(spending, cap),
    )


def _left(spending: Spending, cap: Budget) -> float:
    return max(0.0, cap.epsilon - spending.spent(cap.delta))


def _shared(accounts: Iterable[Account], delta: float) -> Iterable[Shared]:
    readable = [account for account in accounts if not account.problem]
    for certain in (True, False):
        groups: dict[str, list[Account]] = {}
        for account in readable:
            groups.setdefault(account.fingerprint if certain else str(account.folder.parent), []).append(account)
        for group in groups.values():
            if len(group) > 1:
                mu = math.hypot(*(account.mu for account in group))
                yield Shared(tuple(group), gaussian_epsilon(mu, delta), certain)
