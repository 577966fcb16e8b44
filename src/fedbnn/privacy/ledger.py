"""What has been spent on one data set: the client's own record, which outlives runs, restarts and configurations.

Every release is a Gaussian one with mu = Delta / sigma; all of them together are one with

    mu_total = sqrt(sum_i mu_i^2),   and cost epsilon(mu_total, delta)       (see `accountant`)

A release goes through these steps, each on disk before the next one:

    charge line -> make() draws the noise -> the bytes under releases/ -> done line -> the bytes leave

Whenever the process dies, what may have left is charged: a charge without release may stand, a release without charge
cannot. The bytes of a release are made once. Asked again, the ledger gives the stored ones, as fresh noise on the same
data would be a second release. One folder per data set (`chain` says what is in it), one process at a time.
"""

import hashlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.files import locked, make_folder, secure, telling
from fedbnn.privacy.accountant import gaussian_epsilon, gaussian_mu
from fedbnn.privacy.chain import Chain, read_file, refuse, write_durably
from fedbnn.privacy.spending import VERSION, Budget, Charge, Spending

__all__ = ["Budget", "Charge", "Ledger", "Spending"]

_RELEASES = "releases"
_ENDING = ".bin"
_RELEASE_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
_READ_AGAIN = 5  # times, before what a reader without lock sees is taken for damage and not for a writer at work


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
    def open(cls, folder: Path, fingerprint: str, owner: str) -> Iterator["Ledger"]:
        """The ledger of the data with this fingerprint, a new one if the folder has none; locked until the end."""
        if not (fingerprint and owner):
            raise UserError("a ledger needs the fingerprint of its data and the name of its owner")
        make_folder(folder)
        with locked(folder):
            chain = Chain.load(folder, repair=True)
            stored = _stored_ids(folder)
            if chain is None:
                if stored:
                    refuse(folder, f"the ledger is missing, while releases are stored: {', '.join(stored[:3])}")
                chain = Chain.create(folder, {**_stamp("ledger"), **_first(fingerprint, owner)})
            ledger = cls(chain)
            ledger._check_owner(fingerprint, owner)
            _check_stored(ledger, stored)
            make_folder(folder / _RELEASES)
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

    def release(self, release_id: str, inputs: str, mu: float, cap: Budget, make: Callable[[], bytes]) -> bytes:
        """The bytes of a release: charged against `cap` and made now, or those that were stored at the first time.

        `inputs` is a digest of everything but the data that the bytes depend on. `make` is called at most once here,
        after the charge is on disk; if it raises, the charge stands, and the same release may be asked for again.
        """
        _check_arguments(release_id, inputs, mu)
        with self._alone():
            charge = self.charges.get(release_id)
            if charge is not None:
                _check_same(charge, inputs, mu)
                if charge.sha256 is not None:
                    return self._stored(charge)
            # A charge that stands is checked too, without adding it: the cap may have been lowered since.
            self._check_budget(release_id, 0.0 if charge else mu, cap)
            path = self._path(release_id)
            data = read_file(path)
            if charge is None:
                if data is not None:
                    refuse(self.folder, f"{release_id} is stored though it was never charged")
                self._append("charge", release=release_id, inputs=inputs, mu=float(mu), **cap.to_dict())
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

    def _stored(self, charge: Charge) -> bytes:
        data = read_file(self._path(charge.release))
        if data is None or hashlib.sha256(data).hexdigest() != charge.sha256:
            state = "missing" if data is None else "damaged"
            raise UserError(
                f"{self.folder}: the stored bytes of release {charge.release!r} are {state}, and making them again "
                "would be a second release: restore the file from a backup, or charge a release under another name"
            )
        return data

    def _check_budget(self, release_id: str, mu: float, cap: Budget) -> None:
        total = math.hypot(self.mu, mu)
        if total <= gaussian_mu(cap.epsilon, cap.delta):
            return
        spent, needed = (gaussian_epsilon(min(value, 1e100), cap.delta) for value in (self.mu, total))
        raise UserError(
            f"release {release_id!r} is refused: epsilon {_up(spent)} is spent on this data, the release would add "
            f"{_up(needed - spent)}, and the cap is {cap.epsilon:g} (delta {cap.delta:g})"
        )

    def _append(self, kind: str, **fields: str | float) -> None:
        self._chain.append({**_stamp(kind), **fields})
        self._take(self._chain.rows[-1])

    def _check_owner(self, fingerprint: str, owner: str) -> None:
        for what, here, given in (("data", self.fingerprint, fingerprint), ("client", self.owner, owner)):
            if here != given:
                raise UserError(
                    f"{self.folder} is the ledger of other {what} ({here}, not {given}): use another folder"
                )

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

    def _path(self, release_id: str) -> Path:
        return self.folder / _RELEASES / f"{release_id}{_ENDING}"


def _recorded(folder: Path) -> Spending:
    stored = _stored_ids(folder)  # first: a writer that is at work meanwhile charges before it stores
    chain = Chain.load(folder)
    if chain is None:
        raise UserError(f"{folder} holds no ledger")
    spending = Spending(folder, chain.rows)
    _check_stored(spending, stored)
    return spending


def _check_stored(spending: Spending, stored: list[str]) -> None:
    unknown = [name for name in stored if name not in spending.charges]
    if unknown:
        refuse(
            spending.folder, f"a release is stored that was never charged ({unknown[0]}): the ledger is an older one"
        )


def _stored_ids(folder: Path) -> list[str]:
    releases = folder / _RELEASES
    with telling(releases):
        if releases.is_symlink():
            raise UserError(f"{releases} is a symbolic link: releases must be stored in the ledger's own folder")
        if not releases.exists():
            return []
        return sorted(path.name.removesuffix(_ENDING) for path in releases.iterdir() if path.name.endswith(_ENDING))


def _stamp(kind: str) -> dict[str, str]:
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), "kind": kind}


def _first(fingerprint: str, owner: str) -> dict[str, str | int]:
    return {"version": VERSION, "fingerprint": fingerprint, "owner": owner}


def _check_arguments(release_id: str, inputs: str, mu: float) -> None:
    if not _RELEASE_ID.fullmatch(release_id):
        raise UserError(
            f"release id {release_id[:120]!r}: must be 1 to 100 letters, digits, '.', '_' or '-', not '.' at the start"
        )
    if not inputs:
        raise UserError(f"release {release_id!r} comes without a digest of its inputs")
    if not 0 <= mu < math.inf:
        raise UserError(f"mu of release {release_id!r} is {mu}: must be a finite number, at least 0")


def _check_same(charge: Charge, inputs: str, mu: float) -> None:
    for what, before, now in (("inputs", charge.inputs, inputs), ("mu", charge.mu, mu)):
        if before != now:
            raise UserError(
                f"release {charge.release!r} was charged with other {what} ({before}, not {now}): "
                "a release can be had again, but only another name makes another one"
            )


def _up(epsilon: float) -> str:
    """Three decimals, rounded up."""
    return f"{math.ceil(epsilon * 1000 - 1e-6) / 1000:.3f}" if epsilon < 1e6 else "more than a million"
