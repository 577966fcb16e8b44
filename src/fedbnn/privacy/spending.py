"""The lines of a ledger and what they add up to; reading only.

    {"kind": "ledger", "version": 1, "fingerprint": of the data, "owner": name of the client}      the first line
    {"kind": "charge", "release": id, "inputs": digest, "mu": ..., "epsilon": ..., "delta": ...}
    {"kind": "done", "release": id, "sha256": of the stored bytes}

Epsilon and delta are the cap at that time, for the record. Each line also has "previous" (see `chain`) and "time", in
UTC. Other fields, or a line out of order, are refused.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.privacy.accountant import gaussian_epsilon
from fedbnn.privacy.chain import Row, refuse

VERSION = 1

_COMMON: dict[str, type] = {"kind": str, "previous": str, "time": str}
_FIELDS: dict[str, dict[str, type]] = {
    "ledger": {"version": int, "fingerprint": str, "owner": str},
    "charge": {"release": str, "inputs": str, "mu": float, "epsilon": float, "delta": float},
    "done": {"release": str, "sha256": str},
}


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta): the most that a client lets all releases from its data cost together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise UserError(f"epsilon is {self.epsilon}: must be a finite number above 0")
        if not 0 < self.delta < 1:
            raise UserError(f"delta is {self.delta}: must be between 0 and 1, both excluded")

    def to_dict(self) -> dict[str, float]:
        return {"epsilon": float(self.epsilon), "delta": float(self.delta)}


@dataclass(frozen=True)
class Charge:
    """One release: what it was charged, and under which cap."""

    release: str
    inputs: str
    mu: float
    cap: Budget
    time: str
    sha256: str | None = None  # of the stored bytes; None while the release is charged but not done


class Spending:
    """What the lines of a ledger say."""

    def __init__(self, folder: Path, rows: list[Row]) -> None:
        self.folder = folder
        self.charges: dict[str, Charge] = {}
        first = rows[0]
        if first.get("kind") == "ledger" and first.get("version") != VERSION:
            raise UserError(f"{folder}: this ledger has version {first.get('version')!r}, understood is {VERSION}")
        self._lines = 0
        for row in rows:
            self._take(row)
        self.fingerprint: str = first["fingerprint"]
        self.owner: str = first["owner"]

    @property
    def entries(self) -> tuple[Charge, ...]:
        """All releases in the order in which they were charged."""
        return tuple(self.charges.values())

    @property
    def mu(self) -> float:
        """Of all charged releases together."""
        return math.hypot(*(charge.mu for charge in self.charges.values()))

    def spent(self, delta: float) -> float:
        """Epsilon of everything charged so far, rounded up."""
        return gaussian_epsilon(self.mu, delta)

    def _take(self, row: Row) -> None:
        """Add the next line, which the chain has verified, if it makes sense here."""
        self._lines += 1
        problem = self._problem(row)
        if problem:
            refuse(self.folder, f"line {self._lines} of the ledger is not valid ({problem})")
        if row["kind"] == "charge":
            cap = Budget(row["epsilon"], row["delta"])
            self.charges[row["release"]] = Charge(row["release"], row["inputs"], row["mu"], cap, row["time"])
        elif row["kind"] == "done":
            self.charges[row["release"]] = replace(self.charges[row["release"]], sha256=row["sha256"])

    def _problem(self, row: dict[str, Any]) -> str:
        """What is wrong with a line; empty if nothing is."""
        kind = row.get("kind")
        if type(kind) is not str or kind not in _FIELDS:
            return f"unknown kind {kind!r}"
        expected = _COMMON | _FIELDS[kind]
        wrong = [field for field in {**row, **expected} if type(row.get(field)) is not expected.get(field)]
        if wrong:
            return f"field {wrong[0]!r} of kind {kind!r} is unknown, missing or of another type"
        if (kind == "ledger") != (self._lines == 1):
            return f"kind {kind!r} here"
        if kind == "charge":
            if not 0 <= row["mu"] < math.inf:
                return f"mu is {row['mu']}"
            if not (0 < row["epsilon"] < math.inf and 0 < row["delta"] < 1):
                return "a cap that cannot be"
            if row["release"] in self.charges:
                return f"release {row['release']!r} is charged twice"
        if kind == "done":
            charge = self.charges.get(row["release"])
            if charge is None or charge.sha256 is not None:
                return f"release {row['release']!r} is done without being charged"
        return ""
