"""All ledgers of one owner of records, and the one cap over them.

Each set of records has a ledger of its own, in a folder named by its fingerprint. A record may be in several sets:
those of last year and those of this year, a part and the whole. So what counts against the cap is what was ever charged
to any ledger below the owner's folder, under whatever name and in whichever run. Only if the owner declares that its
sets are of different people (`disjoint`) is a set counted by itself, and then together with all others that are seen to
have a record in common with it (`data.identity`), or of which that cannot be seen.

A run has a budget of its own besides, the one in its terms: what the run releases has to be within that as well.

The same question has the same answer as long as the occasion is the same. Among sites that is the run, and its answers
are found whichever set of records they were made from: were they looked for by the records, then an answer that comes
again, bit for bit, would tell that no record was added since, and a fresh one that some was. In a simulation, where
nobody is sent anything, the occasion is the records.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.base.files import locked, make_folder
from fedbnn.data.identity import Identity, contents, fingerprint_of_set, overlap
from fedbnn.privacy.accountant import Guarantee
from fedbnn.privacy.chain import HEAD, LINES
from fedbnn.privacy.cost import Budget, Cost, total
from fedbnn.privacy.ledger import ENDING, STORED, Ledger, Limit, hashes_of, stored
from fedbnn.privacy.spending import Charge, Spending


@dataclass(frozen=True, eq=False)
class Account:
    """Attributes:

    folder: of all ledgers of this owner.
    identity: of the records at hand.
    owner: a name, for the record.
    budget: of the run, and of everything if there is no cap.
    cap: the most that everything ever released from these records may cost; None: the budget.
    run: what tells this run's charges from those of others.
    disjoint: the owner declares that its sets of records are of different people.
    occasion: what else tells a question from the same one, where there is no run.
    joined: a budget of what releases cost as long as only sums over clients are seen.

    """

    folder: Path
    identity: Identity
    owner: str
    budget: Budget
    cap: Budget | None = None
    run: str = ""
    disjoint: bool = False
    occasion: str = ""
    joined: Budget | None = None

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of_set(self.identity)

    @property
    def ledger(self) -> Path:
        """The folder of the ledger of the records at hand."""
        return self.folder / self.fingerprint[:16]

    def release(self, question: str, cost: Cost, make: Callable[[], bytes], *, joined: float = 0.0) -> bytes:
        """The bytes of a release, named after a digest of everything public it depends on; see `Ledger.release`."""
        inputs = hashlib.sha256(f"{question}|{self.run}|{self.occasion}".encode()).hexdigest()
        name = f"release-{inputs[:32]}"
        make_folder(self.folder)
        with locked(self.folder), Ledger.open(self.ledger, self.fingerprint, self.owner, self._contents) as ledger:
            if self.run and (before := self._answered(name, inputs)) is not None:
                return before
            others = list(self._others())
            limits = [Limit(self.cap or self.budget, total(one.cost() for one in others))]
            run = None if self.cap is None else self.run  # under a cap of the owner's, a budget is its run's own
            if run is not None:
                of_run = total(one.cost(run) for one in others)
                limits.append(Limit(self.budget, of_run, run, "the budget of these terms"))
            if self.joined is not None:
                elsewhere = total(one.cost(run, joined=True) for one in others)
                limits.append(Limit(self.joined, elsewhere, run, "privacy.epsilon of the joined sums", joined=True))
            return ledger.release(name, inputs, cost, limits, make, run=self.run, joined=joined)

    def charges(self) -> list[Charge]:
        """Everything that was charged so far and counts with these records."""
        own = [Ledger.read(self.ledger)] if self.ledger in ledgers_in(self.folder) else []
        return [charge for spending in (*own, *self._others()) for charge in spending.entries]

    def spent(self) -> Cost:
        """What all of it cost together."""
        return total(charge.cost for charge in self.charges())

    def guarantee(self, mechanism: str) -> Guarantee:
        """What it comes to at the budget's delta."""
        charges, delta = self.charges(), self.budget.delta
        joined = None
        if any(charge.joined for charge in charges):
            joined = total(charge.joined_cost for charge in charges).epsilon(delta)
        return Guarantee(total(charge.cost for charge in charges).epsilon(delta), delta, "record", mechanism, joined)

    @cached_property
    def _contents(self) -> bytes:
        return contents(self.identity)

    def _answered(self, name: str, inputs: str) -> bytes | None:
        """The answer that this run gave before, from another set of records."""
        for place in ledgers_in(self.folder):
            charge = None if place == self.ledger else Ledger.read(place).charges.get(name)
            if charge is not None and charge.inputs == inputs and charge.sha256 is not None:
                return stored(place, charge)
        return None

    def _others(self) -> Iterator[Spending]:
        """What is on record for the other sets of records that count with these."""
        for place in ledgers_in(self.folder):
            if place == self.ledger:
                continue
            spending = Ledger.read(place)
            if self.disjoint and (kept := hashes_of(spending)) and not overlap(kept, self._contents):
                continue
            yield spending


def ledgers_in(folder: Path) -> list[Path]:
    """Every folder that holds a ledger or what is left of one, this one included.

    None may be passed over: what cannot be read, or lies behind a link, is an error.
    """

    def unreadable(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror}), and a ledger may be in it") from None

    found = set()
    for place, folders, files in os.walk(folder, onerror=unreadable) if folder.exists() else ():
        here = Path(place)
        for name in folders:
            if (here / name).is_symlink():
                raise UserError(
                    f"{here / name} is a symbolic link: a ledger behind it would not be counted; put the folder itself "
                    "there"
                )
        if LINES in files or HEAD in files:
            found.add(here)
        if here.name == STORED and any(name.endswith(ENDING) for name in files):
            found.add(here.parent)
    return sorted(found)
