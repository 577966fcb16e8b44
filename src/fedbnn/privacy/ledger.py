"""What has been spent on one set of records: the client's own record, which outlives runs, restarts and settings.

What releases cost together is the sum of their costs (see `cost`); which other sets of records count with these is up
to the `account`. A release goes through these steps, each on disk before the next one:

    charge line -> make() draws the noise -> the bytes under releases/ -> done line -> the bytes leave

Whenever the process dies, what may have left is charged: a charge without release may stand, a release without charge
cannot. The bytes of a release are made once. Asked again, the ledger gives the stored ones, as fresh noise on the same
data would be a second release. One folder per set of records (`chain` says what is in it), one process at a time.
Beside it lie hashes of the records themselves, by which sets are seen to overlap.
"""

import hashlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.base.files import locked, make_folder, secure, telling
from fedbnn.privacy.chain import Chain, read_file, refuse, write_durably
from fedbnn.privacy.cost import Budget, Cost
from fedbnn.privacy.spending import VERSION, Charge, Spending

__all__ = ["Budget", "Charge", "Cost", "Ledger", "Limit", "Spending"]

RECORDS = "records.bin"
STORED = "releases"
_NOTHING = Cost()
ENDING = ".bin"
_RELEASE_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
_READ_AGAIN = 5  # times, before what a reader without lock sees is taken for damage and not for a writer at work


@dataclass(frozen=True)
class Limit:
    """A budget, and what counts against it.

    Attributes:
        elsewhere: what counts besides the charges of the ledger at hand.
        run: of these, only the charges of this run count; None: all do.
        name: what the budget is, in words.
        joined: it is of what releases cost as long as only sums over clients are seen.

    """

    budget: Budget
    elsewhere: Cost = _NOTHING
    run: str | None = None
    name: str = "the cap"
    joined: bool = False


class Ledger(Spending):
    """A record of spending that is open for releases; made by `Ledger.open`."""

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain.folder, chain.rows)
        self._chain = chain
        self._process = os.getpid()
        self._open = True
        self._busy = threading.Lock()

    @classmethod
    @contextmanager
    def open(cls, folder: Path, fingerprint: str, owner: str, records: bytes = b"") -> Iterator["Ledger"]:
        """The ledger of the records with this fingerprint, a new one if the folder has none; locked until the end.

        `owner` is who began it, for the record. `records` are hashes of the records, kept beside a new ledger.
        """
        if not (fingerprint and owner):
            raise UserError("a ledger needs the fingerprint of its data and the name of its owner")
        make_folder(folder)
        with locked(folder):
            chain = Chain.load(folder, repair=True)
            names = _stored_ids(folder)
            if chain is None:
                if names:
                    refuse(folder, f"the ledger is missing, while releases are stored: {', '.join(names[:3])}")
                if records:
                    write_durably(folder / RECORDS, records)
                chain = Chain.create(folder, {**_stamp("ledger"), **_first(fingerprint, owner, records)})
            ledger = cls(chain)
            ledger._check_open(fingerprint)
            _check_stored(ledger, names)
            make_folder(folder / STORED)
            try:
                yield ledger
            finally:
                ledger._open = False

    @classmethod
    def read(cls, folder: Path) -> Spending:
        """What is on record, without a lock and without changing anything."""
        for _ in range(_READ_AGAIN):
            with suppress(UserError):
                return _recorded(folder)
            time.sleep(0.005)
        return _recorded(folder)

    def release(
        self,
        release_id: str,
        inputs: str,
        cost: Cost,
        limits: Sequence[Limit],
        make: Callable[[], bytes],
        *,
        run: str = "",
        joined: float = 0.0,
    ) -> bytes:
        """The bytes of a release: charged if all limits allow it and made now, or those stored at the first time.

        The first limit's budget is written down as the cap. `inputs` is a digest of everything but the data that the
        bytes depend on. `make` is called at most once here, after the charge is on disk; if it raises, the charge
        stands, and the same release may be asked for again.
        """
        _check_arguments(release_id, inputs)
        with self._alone():
            charge = self.charges.get(release_id)
            if charge is not None:
                _check_same(charge, inputs, cost)
                if charge.sha256 is not None:
                    return stored(self.folder, charge)
            new = Charge(release_id, inputs, cost, limits[0].budget, "", run, joined)
            # A charge that stands is checked too, without adding it: the cap may have been lowered since.
            for limit in limits:
                self._check(limit, release_id, Cost() if charge else new.joined_cost if limit.joined else cost)
            path = _place(self.folder, release_id)
            data = read_file(path)
            if charge is None:
                if data is not None:
                    refuse(self.folder, f"{release_id} is stored though it was never charged")
                self._append("charge", **new.to_row())
            if data is None:
                data = make()
                if not isinstance(data, bytes):
                    raise TypeError(f"make() returned {type(data).__name__}: must return bytes")
                write_durably(path, data)
            else:
                with telling(path.parent):
                    secure(path.parent)  # the process died after these bytes got their name, maybe before it was kept
            self._append("done", release=release_id, sha256=hashlib.sha256(data).hexdigest())
            return data

    def _check(self, limit: Limit, release_id: str, cost: Cost) -> None:
        before = limit.elsewhere + self.cost(limit.run, joined=limit.joined)
        if (before + cost).fits(limit.budget):
            return
        spent, needed = (one.epsilon(limit.budget.delta) for one in (before, before + cost))
        raise UserError(
            f"release {release_id!r} is refused: epsilon {_up(spent)} is spent on this data, the release would add "
            f"{_up(needed - spent)}, and {limit.name} is {limit.budget.epsilon:g} (delta {limit.budget.delta:g})"
        )

    def _append(self, kind: str, **fields: Any) -> None:
        self._chain.append({**_stamp(kind), **fields})
        self._take(self._chain.rows[-1])

    def _check_open(self, fingerprint: str) -> None:
        if self.fingerprint != fingerprint:
            raise UserError(
                f"{self.folder} is the ledger of other data ({self.fingerprint}, not {fingerprint}): use another folder"
            )
        if self.version != VERSION:
            raise UserError(f"{self.folder} is a ledger of version {self.version}: it is counted, but not added to")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._open or os.getpid() != self._process:
            raise RuntimeError("the ledger is not open in this process")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("one release at a time: another one of this ledger is being made")
        try:
            yield
        finally:
            self._busy.release()


def stored(folder: Path, charge: Charge) -> bytes:
    """The bytes of a release that is done."""
    data = read_file(_place(folder, charge.release))
    if data is None or hashlib.sha256(data).hexdigest() != charge.sha256:
        state = "missing" if data is None else "damaged"
        raise UserError(
            f"{folder}: the stored bytes of release {charge.release!r} are {state}, and making them again "
            "would be a second release: restore the file from a backup, or charge a release under another name"
        )
    return data


def hashes_of(spending: Spending) -> bytes | None:
    """The hashes of a ledger's records; None where they are not those that it was begun with."""
    kept = read_file(spending.folder / RECORDS)
    return kept if kept and hashlib.sha256(kept).hexdigest() == spending.records else None


def _place(folder: Path, release_id: str) -> Path:
    return folder / STORED / f"{release_id}{ENDING}"


def _recorded(folder: Path) -> Spending:
    names = _stored_ids(folder)  # first: a writer that is at work meanwhile charges before it stores
    chain = Chain.load(folder)
    if chain is None:
        raise UserError(f"{folder} holds no ledger")
    spending = Spending(folder, chain.rows)
    _check_stored(spending, names)
    return spending


def _check_stored(spending: Spending, names: list[str]) -> None:
    unknown = [name for name in names if name not in spending.charges]
    if unknown:
        refuse(
            spending.folder, f"a release is stored that was never charged ({unknown[0]}): the ledger is an older one"
        )


def _stored_ids(folder: Path) -> list[str]:
    releases = folder / STORED
    with telling(releases):
        if releases.is_symlink():
            raise UserError(f"{releases} is a symbolic link: releases must be stored in the ledger's own folder")
        if not releases.exists():
            return []
        return sorted(path.name.removesuffix(ENDING) for path in releases.iterdir() if path.name.endswith(ENDING))


def _stamp(kind: str) -> dict[str, str]:
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), "kind": kind}


def _first(fingerprint: str, owner: str, records: bytes) -> dict[str, str | int]:
    known = hashlib.sha256(records).hexdigest()
    return {"version": VERSION, "fingerprint": fingerprint, "owner": owner, "records": known}


def _check_arguments(release_id: str, inputs: str) -> None:
    if not _RELEASE_ID.fullmatch(release_id):
        raise UserError(
            f"release id {release_id[:120]!r}: must be 1 to 100 letters, digits, '.', '_' or '-', not '.' at the start"
        )
    if not inputs:
        raise UserError(f"release {release_id!r} comes without a digest of its inputs")


def _check_same(charge: Charge, inputs: str, cost: Cost) -> None:
    for what, before, now in (("inputs", charge.inputs, inputs), ("cost", charge.cost, cost)):
        if before != now:
            raise UserError(
                f"release {charge.release!r} was charged with other {what} ({before}, not {now}): "
                "a release can be had again, but only another name makes another one"
            )


def _up(epsilon: float) -> str:
    """Three decimals, rounded up."""
    return f"{math.ceil(epsilon * 1000 - 1e-6) / 1000:.3f}" if epsilon < 1e6 else "more than a million"  # nan too
