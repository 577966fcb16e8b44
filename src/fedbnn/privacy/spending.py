"""The lines of a ledger and what they add up to; reading only.

    {"kind": "ledger", "version": 2, "fingerprint": of the records, "owner": name of the client,
     "records": SHA-256 of the file of their hashes}                                                  the first line
    {"kind": "charge", "release": id, "inputs": digest, "run": name, "mu": ..., "noise": ..., "rate": ..., "steps": ...,
     "gap": ..., "joined": ..., "epsilon": ..., "delta": ...}
    {"kind": "done", "release": id, "sha256": of the stored bytes}

mu, or noise, rate and steps of releases over samples, and gap are the cost (see `cost`). joined, if it is not zero, is
the mu that remains where only the sum of several clients' releases can be seen. Epsilon and delta are the cap at that
time, for the record. Each line also has "previous" (see `chain`) and "time", in UTC. Other fields, or a line out of
order, are refused. A ledger of version 1, whose charges have only a mu, is still counted, but not added to.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.privacy.chain import Row, refuse
from fedbnn.privacy.cost import Budget, Cost, Sampled, total

VERSION = 2
_CROWD = 1001  # the noises of as many clients as an aggregation may have, and their sum, each have the gap of one

_COMMON: dict[str, type] = {"kind": str, "previous": str, "time": str}
_CHARGE: dict[str, type] = {"release": str, "inputs": str, "mu": float, "epsilon": float, "delta": float}
_SINCE_2: dict[str, type] = {"run": str, "noise": float, "rate": float, "steps": int, "gap": float, "joined": float}
_FIRST: dict[str, type] = {"version": int, "fingerprint": str, "owner": str}
_DONE: dict[str, type] = {"release": str, "sha256": str}
_FIELDS = {
    1: {"ledger": _FIRST, "charge": _CHARGE, "done": _DONE},
    VERSION: {"ledger": _FIRST | {"records": str}, "charge": _CHARGE | _SINCE_2, "done": _DONE},
}


@dataclass(frozen=True)
class Charge:
    """One release: what it was charged, in which run, and under which cap."""

    release: str
    inputs: str
    cost: Cost
    cap: Budget
    time: str
    run: str = ""
    joined: float = 0.0  # mu where only the sum of several clients' releases can be seen; zero: each can be
    sha256: str | None = None  # of the stored bytes; None while the release is charged but not done

    @property
    def joined_cost(self) -> Cost:
        """What it costs as long as nobody sees more than sums of several clients' releases."""
        return Cost(self.joined, gap=_CROWD * self.cost.gap) if self.joined else self.cost

    def to_row(self) -> Row:
        """The fields of its line, but those that every line has."""
        if len(self.cost.sampled) > 1:
            raise ValueError("one release has one kind of sample")
        noise, rate, steps = self.cost.sampled[0] if self.cost.sampled else (0.0, 0.0, 0)
        return {
            "release": self.release,
            "inputs": self.inputs,
            "run": self.run,
            "mu": float(self.cost.mu),
            "noise": float(noise),
            "rate": float(rate),
            "steps": steps,
            "gap": float(self.cost.gap),
            "joined": float(self.joined),
            **self.cap.to_dict(),
        }

    @classmethod
    def from_row(cls, row: Row) -> "Charge":
        steps = row.get("steps", 0)
        sampled = (Sampled(row["noise"], row["rate"], steps),) if steps else ()
        cost = Cost(row["mu"], sampled, row.get("gap", 0.0))
        cap = Budget(row["epsilon"], row["delta"])
        joined = row.get("joined", 0.0)
        return cls(row["release"], row["inputs"], cost, cap, row["time"], row.get("run", ""), joined)


class Spending:
    """What the lines of a ledger say."""

    def __init__(self, folder: Path, rows: list[Row]) -> None:
        self.folder = folder
        self.charges: dict[str, Charge] = {}
        first = rows[0]
        version = first.get("version")
        if first.get("kind") == "ledger" and (type(version) is not int or version not in _FIELDS):
            raise UserError(f"{folder}: this ledger has version {version!r}, understood are 1 to {VERSION}")
        self.version: int = version if type(version) is int else VERSION
        self._lines = 0
        for row in rows:
            self._take(row)
        self.began: str = first["time"]
        self.fingerprint: str = first["fingerprint"]
        self.owner: str = first["owner"]
        self.records: str = first.get("records", "")

    @property
    def entries(self) -> tuple[Charge, ...]:
        """All releases in the order in which they were charged."""
        return tuple(self.charges.values())

    def cost(self, run: str | None = None, *, joined: bool = False) -> Cost:
        """Of all charged releases together, or of those of one run; `joined`: as long as only sums are seen."""
        counted = [charge for charge in self.charges.values() if run in (None, charge.run)]
        return total(charge.joined_cost if joined else charge.cost for charge in counted)

    def spent(self, delta: float) -> float:
        """Epsilon of everything charged so far, rounded up."""
        return self.cost().epsilon(delta)

    def _take(self, row: Row) -> None:
        """Add the next line, which the chain has verified, if it makes sense here."""
        self._lines += 1
        problem = self._problem(row)
        if problem:
            refuse(self.folder, f"line {self._lines} of the ledger is not valid ({problem})")
        if row["kind"] == "charge":
            self.charges[row["release"]] = Charge.from_row(row)
        elif row["kind"] == "done":
            self.charges[row["release"]] = replace(self.charges[row["release"]], sha256=row["sha256"])

    def _problem(self, row: dict[str, Any]) -> str:
        """What is wrong with a line; empty if nothing is."""
        kind = row.get("kind")
        fields = _FIELDS[self.version]
        if type(kind) is not str or kind not in fields:
            return f"unknown kind {kind!r}"
        expected = _COMMON | fields[kind]
        wrong = [field for field in {**row, **expected} if type(row.get(field)) is not expected.get(field)]
        if wrong:
            return f"field {wrong[0]!r} of kind {kind!r} is unknown, missing or of another type"
        if (kind == "ledger") != (self._lines == 1):
            return f"kind {kind!r} here"
        if kind == "charge":
            if not (0 <= row["mu"] < math.inf and 0 <= row.get("joined", 0.0) < math.inf):
                return f"mu is {row['mu']}"
            if problem := _sampled_problem(row):
                return problem
            if not (0 < row["epsilon"] < math.inf and 0 < row["delta"] < 1):
                return "a cap that cannot be"
            if row["release"] in self.charges:
                return f"release {row['release']!r} is charged twice"
        if kind == "done":
            charge = self.charges.get(row["release"])
            if charge is None or charge.sha256 is not None:
                return f"release {row['release']!r} is done without being charged"
        return ""


def _sampled_problem(row: Row) -> str:
    """What is wrong with the part of a charge that is about samples and the gap; empty if nothing is."""
    steps, noise, rate = row.get("steps", 0), row.get("noise", 0.0), row.get("rate", 0.0)
    sampled = 1 <= steps < 2**53 and 0 < noise < math.inf and 0 < rate <= 1
    if not (sampled or (steps, noise, rate) == (0, 0.0, 0.0)):
        return f"{steps} steps with noise {noise} at rate {rate}"
    return "" if 0 <= row.get("gap", 0.0) < math.inf else f"gap is {row['gap']}"
