"""From a site's ledgers, its own file and the terms of its runs to a statement that somebody can sign."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.base.files import make_folder, read_json
from fedbnn.base.version import __version__
from fedbnn.base.wording import listing
from fedbnn.data.identity import HALF, overlap
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.state import remembered_site, runs_in
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.federation.method import Method
from fedbnn.methods.alone import Alone
from fedbnn.methods.own_budget import OwnBudget
from fedbnn.methods.registry import known_method
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.chain import LINES, read_file, write_durably
from fedbnn.privacy.cost import total
from fedbnn.privacy.ledger import RECORDS, Ledger
from fedbnn.privacy.overview import Entry, Overview, overview
from fedbnn.privacy.spending import Spending
from fedbnn.report.protection import PROTECTIONS
from fedbnn.report.statement import Declared, RecordSet, Release, Run, Statement, Together, Unit
from fedbnn.report.statement_page import as_data, render
from fedbnn.runs.config import parse_config

PAGE, DATA = "statement.html", "statement.json"
_NO_VALUES = hashlib.sha256(b"").digest()[:HALF]


@dataclass
class Known:
    """What lies beside the ledgers: the site's own file and the terms of its runs, as far as they can be read."""

    site: bool = False  # whether all ledgers are those of one site, and under one cap
    runs: dict[str, Run] = field(default_factory=dict)  # by digest
    sending: list[Run] = field(default_factory=list)  # those that send something and promise nothing about records
    declared: Declared | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, run: Run, method: Method[Any, Any] | None) -> None:
        self.runs[run.digest] = run
        if run.promise is None and not isinstance(method, Alone):
            self.sending.append(run)


def statement(folder: Path, delta: float, name: str = "") -> Statement:
    """Of a site's state folder, a run folder, a folder of ledgers or one ledger's folder.

    Raises:
        UserError: there is no ledger, or the folder is above a site's; one that is broken is part of the statement.
    """
    _refuse_above(folder)
    known = _known(folder)
    if known.sending and not ledgers_in(folder):
        names = listing(run.name for run in known.sending)
        raise UserError(
            f"no ledger in {folder}: its runs ({names}) promise nothing about records, and nothing can be said"
        )
    found = overview(folder, delta)
    sound = {entry.folder: Ledger.read(entry.folder) for entry in found.entries if not entry.problem}
    if left_out := _left_out(folder):
        known.notes.append(
            f"This page is of one ledger, and beside it lie others ({left_out}): what they have in common with it, and "
            "what remains of the cap, is only told for the folder of all of them."
        )
    reader = _Reader(found, known, tuple(sound.values()), partial=bool(left_out))
    groups = [reader.together([sound[entry.folder] for entry in group]) for group in _groups(found)]
    owners = dict.fromkeys(spending.owner for spending in sound.values())
    return Statement(
        name=name or (known.declared.site if known.declared else ", ".join(owners)) or folder.resolve().name,
        folder=str(folder),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        fedbnn=__version__,
        delta=delta,
        groups=tuple(groups),
        broken=tuple(entry.problem for entry in found.broken),
        runs=tuple(known.runs.values()),
        unprotected=tuple(known.sending),
        declared=known.declared,
        notes=(*known.notes, *_large_delta(groups)),
    )


def write_statement(made: Statement, out: Path) -> tuple[Path, Path]:
    """The page and its data in a folder, for nobody but the owner to read; statements that lie there are replaced."""
    make_folder(out)
    page, data = out / PAGE, out / DATA
    write_durably(page, render(made).encode())
    write_durably(data, (json.dumps(as_data(made), indent=2, allow_nan=False) + "\n").encode())
    return page, data


def _groups(found: Overview) -> Iterator[tuple[Entry, ...]]:
    """All sound ledgers, those together that may share records."""
    linked = {entry.folder: shared.entries for shared in found.shared for entry in shared.entries}
    for entry in found.entries:
        group = linked.get(entry.folder, (entry,))
        if not entry.problem and group[0] is entry:
            yield group


@dataclass(frozen=True)
class _Reader:
    """Attributes:

    ledgers: all that can be believed.
    partial: whether others lie beside them.

    """

    found: Overview
    known: Known
    ledgers: tuple[Spending, ...]
    partial: bool

    @cached_property
    def kept(self) -> dict[Path, bytes]:
        """Hashes of each ledger's records; none in old ledgers."""
        return {spending.folder: read_file(spending.folder / RECORDS) or b"" for spending in self.ledgers}

    def together(self, group: Sequence[Spending]) -> Together:
        charges = [(spending, charge) for spending in group for charge in spending.entries]
        charges.sort(key=lambda one: one[1].time)  # stable: a ledger's own order is kept
        delta, releases = self.found.delta, []
        for number, (spending, charge) in enumerate(charges, 1):
            after = total(one.cost for _, one in charges[:number]).epsilon(delta)
            alone, run = charge.cost.epsilon(delta), self.known.runs.get(charge.run)
            releases.append(Release(spending.fingerprint, charge, run, alone, after))
        sets = tuple(self._record_set(one, group) for one in group)
        unit = _unit([self.kept[one.folder] for one in group])
        seen = any(
            shared.certain and group[0].folder in {entry.folder for entry in shared.entries}
            for shared in self.found.shared
        )
        return Together(delta, unit, sets, tuple(releases), seen)

    def _record_set(self, one: Spending, group: Sequence[Spending]) -> RecordSet:
        """One set of records, and what its owner's cap leaves for it; by the same rule as `Account`."""
        declared = self.known.declared
        counted = [other for other in (self.ledgers if self.known.site else group) if self._counts(one, other)]
        charges = [spending.entries[-1] for spending in counted if spending.entries]
        last = max(charges, key=lambda charge: charge.time, default=None)
        cap = (declared.cap if declared else None) or (last.cap if last else None)
        left = None
        if cap is not None and not (self.partial or self.found.broken):
            left = max(0.0, cap.epsilon - total(spending.cost() for spending in counted).epsilon(cap.delta))
        records = len(self.kept[one.folder]) // HALF or None
        return RecordSet(str(one.folder), one.owner, one.fingerprint, records, one.began, len(one.entries), cap, left)

    def _counts(self, one: Spending, other: Spending) -> bool:
        if one is other or not (self.known.declared and self.known.declared.disjoint):
            return True
        ours, theirs = self.kept[one.folder], self.kept[other.folder]
        return not (ours and theirs) or overlap(ours, theirs)


def _unit(kept: Iterable[bytes]) -> Unit:
    """Where the server adds the noise, the ledger is its own, and its records have names but no values: clients."""
    hashes = b"".join(kept)
    nameless = len(hashes) > 0 and hashes == _NO_VALUES * (len(hashes) // HALF)
    return "client" if nameless else "record"


def _left_out(folder: Path) -> int:
    """How many ledgers lie beside the one that was asked for."""
    if not (folder / LINES).exists():
        return 0
    return sum(file.parent.resolve() != folder.resolve() for file in folder.resolve().parent.glob(f"*/{LINES}"))


def _large_delta(groups: Sequence[Together]) -> Iterator[str]:
    most = max((one.records or 0 for group in groups for one in group.sets), default=0)
    if most and groups[0].delta >= 1 / most:
        yield (
            f"δ = {groups[0].delta:g} is not below one over the number of records ({most:,}): with it, a record may "
            "be published at random. Ask for a smaller one (--delta)."
        )


# what lies beside the ledgers


def _known(folder: Path) -> Known:
    known = Known()
    state = _state_of(folder)
    if state is not None:
        known.site = True
        _read_site(state, known)
        for key in runs_in(state):
            try:
                terms = read_terms(state / "runs" / key / "terms.json")
                known.add(*_run_of(terms))
            except UserError as error:
                known.notes.append(f"What run {key} was about cannot be told: {error}.")
    elif (folder / "config.json").exists():
        _read_config(folder, known)
    return known


def _state_of(folder: Path) -> Path | None:
    """The state folder of a site that this folder is, or lies in."""
    folder = folder.resolve()
    places = [folder, *(above.parent for above in [folder, *folder.parents[:2]] if above.name == "ledgers")]
    return next((place for place in places if (place / "site.json").exists() or runs_in(place)), None)


def _refuse_above(folder: Path) -> None:
    """From above a state folder its ledgers are found, but not its runs: what these sent would not be told."""
    states = {state for ledger in ledgers_in(folder) if (state := _state_of(ledger)) is not None}
    if above := sorted(str(state) for state in states if folder.resolve() in state.parents):
        raise UserError(
            f"{folder} is above a site's state folder, which tells its runs and its cap, too: give {listing(above)}"
        )


def _read_site(state: Path, known: Known) -> None:
    try:
        site = read_site(remembered_site(state))
    except (UserError, KeyError, TypeError) as error:
        known.notes.append(f"The site's own file cannot be read, so its declarations are not told: {error}.")
        return
    cap = site.privacy
    known.declared = Declared(
        site.name, cap.budget if cap else None, cap.multiplicity if cap else 1, bool(cap and cap.disjoint)
    )


def _run_of(terms: Terms) -> tuple[Run, Method[Any, Any] | None]:
    method = terms.chosen() if known_method(terms.method) is not None else None
    promise = method.protects(terms.privacy) if method is not None else None
    return Run(
        terms.run,
        terms.digest,
        terms.method,
        terms.privacy.mechanism,
        terms.privacy.secure,
        _sent(method, terms.privacy),
        promise.budget if promise is not None and promise.unit == "record" else None,
        terms.rounds,
        terms.alignment.source,
        terms.alignment.sha256,
    ), method


def _read_config(folder: Path, known: Known) -> None:
    """Of a simulation: charges of a run whose ledgers lie in its own folder bear no name."""
    try:
        raw = read_json(folder / "config.json")
        if known_method(str(raw["method"])) is None:
            return
        config = parse_config(raw)
        method = config.chosen()
        promise = method.protects(config.privacy)
    except (UserError, AttributeError, KeyError, TypeError) as error:
        known.notes.append(f"What this run was about cannot be told: {error}.")
        return
    budget = promise.budget if promise is not None else None
    name, privacy = folder.resolve().name, config.privacy
    sent = _sent(method, privacy)
    known.add(Run(name, "", config.method, privacy.mechanism, privacy.secure, sent, budget, config.rounds), method)


def _sent(method: Method[Any, Any] | None, privacy: PrivacySettings) -> str:
    """What leaves a client, in the words of the report."""
    if isinstance(method, OwnBudget):
        return PROTECTIONS[method.mechanism].sent
    found = PROTECTIONS.get(privacy.mechanism) if method is not None else None
    return found.sent if found else ""
