"""What a site's ledgers say, for somebody who answers for its records: as data, and as the data of a file.

Sets of records that may have records in common are counted together (see `privacy.overview`), so epsilon, what was
spent before and what remains are those of such a group, whichever of its ledgers a release is in.
"""

import math
import sys
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from fedbnn.privacy.cost import Budget, Cost, total
from fedbnn.privacy.spending import Charge

VERSION = 1

Unit = Literal["record", "client"]


@dataclass(frozen=True)
class Run:
    """What the terms of a run say, or its configuration.

    Attributes:
        digest: by which charges name the run.
        secure: whether the server was to see only the sum over clients of what is sent.
        sent: what leaves a client, in words; empty if that is not known.
        promise: what the terms allow all releases of the run together; None: they promise nothing about records.
        sha256: of the alignment set.

    """

    name: str
    digest: str
    method: str
    mechanism: str
    secure: bool
    sent: str
    promise: Budget | None
    rounds: int
    alignment: str = ""
    sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RecordSet:
    """The records of one ledger.

    Attributes:
        records: how many; None: an old ledger, that does not tell.
        left: of the cap, for what these records may still be used for; None: not known.

    """

    ledger: str
    owner: str
    fingerprint: str
    records: int | None
    began: str
    releases: int
    cap: Budget | None
    left: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Release:
    """One charge; `alone` is its epsilon, `after` that of everything up to it."""

    fingerprint: str
    charge: Charge
    run: Run | None
    alone: float
    after: float

    @property
    def done(self) -> bool:
        """Whether its bytes were made; if not, they may not have left, but are charged."""
        return self.charge.sha256 is not None

    def to_dict(self) -> dict[str, Any]:
        charge = self.charge
        return {
            "time": charge.time,
            "release": charge.release,
            "records": self.fingerprint,
            "run": charge.run,
            "run_name": self.run.name if self.run else None,
            "sent": (self.run.sent if self.run else "") or None,
            "cost": cost_dict(charge.cost),
            "joined": charge.joined,
            "epsilon_alone": number(self.alone),
            "epsilon_after": number(self.after),
            "cap": charge.cap.to_dict(),
            "state": "done" if self.done else "charged",
            "sha256": charge.sha256,
        }


@dataclass(frozen=True)
class Together:
    """Sets of records that are counted together, and everything that was released from them.

    Attributes:
        unit: what one may add or remove.
        seen: whether several sets are seen to have records in common.

    """

    delta: float
    unit: Unit
    sets: tuple[RecordSet, ...]
    releases: tuple[Release, ...]
    seen: bool = False

    @cached_property
    def cost(self) -> Cost:
        return total(release.charge.cost for release in self.releases)

    @cached_property
    def epsilon(self) -> float:
        return self.cost.epsilon(self.delta)

    @cached_property
    def best_guess(self) -> float:
        """How often the best guess is right whether one record is there."""
        return self.cost.best_guess()

    @cached_property
    def if_joined(self) -> float | None:
        """Epsilon where only sums over sites can be seen of what was aggregated; None: nothing was."""
        if not any(release.charge.joined for release in self.releases):
            return None
        return total(release.charge.joined_cost for release in self.releases).epsilon(self.delta)

    @cached_property
    def of_two_records(self) -> float | None:
        """Epsilon of a person with two records: twice the mu; None where samples leave no such formula."""
        return (
            None
            if self.cost.sampled
            else Cost(min(2 * self.cost.mu, sys.float_info.max), gap=self.cost.gap).epsilon(self.delta)
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "epsilon": number(self.epsilon),
            "epsilon_if_only_sums_are_seen": number(self.if_joined),
            "epsilon_of_two_records": number(self.of_two_records),
            "best_guess": self.best_guess,
            "cost": cost_dict(self.cost),
            "seen_to_share_records": self.seen,
            "sets": [one.to_dict() for one in self.sets],
            "releases": [release.to_dict() for release in self.releases],
        }


@dataclass(frozen=True)
class Declared:
    """What the site says of itself in its own file."""

    site: str
    cap: Budget | None
    multiplicity: int
    disjoint: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Statement:
    """Everything on the page.

    Attributes:
        broken: why ledgers cannot be believed; if there are any, what was spent is not known.
        unprotected: runs that the site took part in and that promise nothing about its records.
        notes: what the reader has to know of how the page was made.

    """

    name: str
    folder: str
    made: str
    fedbnn: str
    delta: float
    groups: tuple[Together, ...]
    broken: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    unprotected: tuple[Run, ...] = ()
    declared: Declared | None = None
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> Together | None:
        """The group that cost most; None where that is not known."""
        return None if self.broken or not self.groups else max(self.groups, key=lambda group: group.epsilon)

    @property
    def epsilon(self) -> float | None:
        return self.worst.epsilon if self.worst else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "fedbnn privacy statement",
            "version": VERSION,
            "name": self.name,
            "folder": self.folder,
            "made": self.made,
            "fedbnn": self.fedbnn,
            "delta": self.delta,
            "epsilon": number(self.epsilon),
            "known": not self.broken,
            "broken": list(self.broken),
            "groups": [group.to_dict() for group in self.groups],
            "runs": [run.to_dict() for run in self.runs],
            "unprotected_runs": [run.to_dict() for run in self.unprotected],
            "declared": self.declared.to_dict() if self.declared else None,
            "notes": list(self.notes),
        }


def cost_dict(cost: Cost) -> dict[str, Any]:
    return {"mu": cost.mu, "sampled": [one._asdict() for one in cost.sampled], "gap": cost.gap}


def number(value: float | None) -> float | str | None:
    """As strict JSON has it, which knows no infinity."""
    return "infinity" if value is not None and math.isinf(value) else value
