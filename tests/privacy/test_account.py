"""One cap over everything that was ever released from overlapping records, and the budget of each run besides."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedbnn.base.errors import UserError
from fedbnn.data.identity import identify
from fedbnn.privacy import Account, Budget, Cost
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.ledger import Ledger
from tests.privacy.test_ledger import rewrite

RNG = np.random.default_rng(1)
X = RNG.normal(size=(20, 3)).astype(np.float32)
CAP = Budget(3.0, 1e-5)
THIRD = Cost(1 / 3.1095 * math.sqrt(5 / 3))  # three of these make 3


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


def account(folder: Path, rows: slice = slice(None), owner: str = "site", **changes) -> Account:
    x = X[rows]
    return Account(folder, identify(x, ["a"] * len(x)), owner, **{"budget": CAP, **changes})


def ask(one: Account, *names: str, cost: Cost = THIRD) -> None:
    for name in names:
        one.release(name.ljust(32, "0"), cost, lambda: os.urandom(8))


def refused(one: Account, match: str = "is refused", cost: Cost = THIRD) -> None:
    before = {path: path.read_bytes() for path in one.folder.rglob("*.bin")}
    with pytest.raises(UserError, match=match):
        one.release("ffff".ljust(32, "f"), cost, lambda: pytest.fail("made"))
    kept = {path: path.read_bytes() for path in one.folder.rglob("*.bin") if path.parent.name == "releases"}
    assert kept == {path: data for path, data in before.items() if path.parent.name == "releases"}


def test_sets_of_records_share_one_cap(tmp_path):
    """Half of the records, the whole, and others still: whoever asks under new names or sets gets no fresh budget."""
    ask(account(tmp_path, slice(10)), "1")
    ask(account(tmp_path), "2")
    ask(account(tmp_path, slice(15, 20), owner="renamed"), "3")
    for rows in (slice(10), slice(None), slice(15, 20), slice(3)):
        refused(account(tmp_path, rows), r"epsilon 3\.000 is spent")
    assert account(tmp_path).guarantee("m").epsilon == pytest.approx(3, abs=1e-3)


def test_a_new_name_is_no_new_owner(tmp_path):
    ask(account(tmp_path), "1", "2", "3")
    refused(account(tmp_path, owner="somebody else"))


def test_disjoint_sets_are_counted_alone_if_the_owner_says_so_and_it_is_true(tmp_path):
    first, second = account(tmp_path, slice(10), disjoint=True), account(tmp_path, slice(10, 20), disjoint=True)
    ask(first, "1", "2", "3")
    refused(first)
    refused(account(tmp_path, slice(10, 20)))  # it was not said
    ask(second, "1", "2")
    overlapping = account(tmp_path, slice(9, 12), disjoint=True)  # one record of the first set
    refused(overlapping)
    ask(second, "3")
    refused(second)


def test_a_declaration_is_not_believed_of_sets_that_cannot_be_seen(tmp_path):
    first = account(tmp_path, slice(10), disjoint=True)
    ask(first, "1", "2", "3")
    (first.ledger / "records.bin").unlink()
    refused(account(tmp_path, slice(10, 20), disjoint=True))


def test_ledgers_of_version_1_below_the_folder_are_counted(tmp_path):
    """As they were: a folder for the site's name, in it one for the old fingerprint."""
    old = account(tmp_path / "site-1234abcd")
    ask(old, "1", "2", "3")
    rows = [json.loads(line) for line in (old.ledger / "ledger.jsonl").read_bytes().splitlines()]
    new = ("run", "noise", "rate", "steps", "gap", "joined", "records")
    rows = [{key: value for key, value in row.items() if key not in new} for row in rows]
    rewrite(old.ledger, [rows[0] | {"version": 1}, *rows[1:]])
    (old.ledger / "records.bin").unlink()
    refused(account(tmp_path, slice(3)), r"epsilon 3\.000 is spent")
    refused(account(tmp_path, slice(3), disjoint=True))


def test_a_broken_ledger_anywhere_stops_everything(tmp_path):
    ask(account(tmp_path, slice(10)), "1")
    file = account(tmp_path, slice(10)).ledger / "head.json"
    file.unlink()
    refused(account(tmp_path, slice(10, 20)), "head.json is missing")
    assert len(ledgers_in(tmp_path)) == 2  # the new set's was begun, and is empty
    shutil.rmtree(account(tmp_path, slice(10)).ledger / "releases")
    assert account(tmp_path, slice(10)).ledger in ledgers_in(tmp_path)


def test_a_run_is_held_to_its_own_budget_under_a_larger_cap(tmp_path):
    """Terms of epsilon 1 are not a licence to use the site's cap of 8."""
    small = Cost(1 / 8)
    terms = {"budget": Budget(1.0, 1e-5), "cap": Budget(8.0, 1e-5)}
    one, other = account(tmp_path, run="one", **terms), account(tmp_path, run="other", **terms)
    with pytest.raises(UserError, match="the budget of these terms is 1 "):
        ask(one, *(f"{count}a" for count in range(50)), cost=small)
    spent = one.spent().epsilon(1e-5)
    assert 0.9 < spent <= 1
    ask(other, "1b", cost=small)  # another run has its own
    changed = account(tmp_path, slice(19), run="one", **terms)  # the same run, a record fewer: the same budget
    refused(changed, "the budget of these terms", cost=small)
    assert other.spent().epsilon(1e-5) > spent


def test_the_same_question_is_answered_once(tmp_path):
    one = account(tmp_path)
    first = one.release("a" * 32, THIRD, lambda: b"bytes")
    assert one.release("a" * 32, THIRD, lambda: pytest.fail("made")) == first
    assert len(Ledger.read(one.ledger).entries) == 1


def test_in_one_run_it_is_answered_once_whatever_the_records_are(tmp_path):
    """Fresh noise after a change of the records, and the old bytes without one, would tell of the change."""
    one, changed = (account(tmp_path, rows, run="run") for rows in (slice(None), slice(19)))
    first = one.release("a" * 32, THIRD, lambda: b"bytes")
    assert changed.release("a" * 32, THIRD, lambda: pytest.fail("made")) == first
    assert not Ledger.read(changed.ledger).entries
    another = account(tmp_path, run="another")
    assert another.release("a" * 32, THIRD, lambda: b"other") == b"other"
    assert changed.release("b" * 32, THIRD, lambda: b"third") == b"third"


def test_in_a_simulation_the_records_are_part_of_the_question(tmp_path):
    one, changed = (account(tmp_path, rows, occasion=str(rows)) for rows in (slice(None), slice(19)))
    one.release("a" * 32, THIRD, lambda: b"bytes")
    assert changed.release("a" * 32, THIRD, lambda: b"other") == b"other"


def test_a_ledger_behind_a_link_is_not_passed_over(tmp_path):
    one = account(tmp_path / "ledgers")
    ask(one, "1", "2", "3")
    moved = tmp_path / "elsewhere"
    one.ledger.rename(moved)
    one.ledger.symlink_to(moved, target_is_directory=True)
    for other in (one, account(tmp_path / "ledgers", slice(19))):
        with pytest.raises(UserError, match="is a symbolic link: a ledger behind it would not be counted"):
            ask(other, "4")
        with pytest.raises(UserError, match="is a symbolic link"):
            other.guarantee("dp_teacher")


@pytest.mark.parametrize("damage", [lambda kept: bytes(len(kept)), lambda kept: kept[:-16], lambda kept: b""])
def test_hashes_of_records_that_were_changed_count_as_of_the_same_people(tmp_path, damage):
    one = account(tmp_path, slice(10), disjoint=True)
    ask(one, "1", "2", "3")
    ask(account(tmp_path, slice(15, 20), disjoint=True), "4")  # others
    kept = one.ledger / "records.bin"
    kept.write_bytes(damage(kept.read_bytes()))
    refused(account(tmp_path, slice(10, 15), disjoint=True))


def test_sums_that_are_joined_have_a_budget_of_their_own(tmp_path):
    """Charged is what remains if the aggregation is broken; what was released in plain counts in full on both."""
    budgets = {"budget": Budget(30.0, 1e-5), "joined": CAP}
    ask(account(tmp_path), "1", "2")
    secure = account(tmp_path, **budgets)
    cost, joined = Cost(1.0), 0.41
    secure.release("a" * 32, cost, lambda: b"", joined=joined)
    assert secure.guarantee("dp_moments").joined <= 3
    with pytest.raises(UserError, match=r"privacy\.epsilon of the joined sums is 3 "):
        secure.release("b" * 32, cost, lambda: pytest.fail("made"), joined=joined)
    under_a_cap = account(tmp_path, cap=Budget(40.0, 1e-5), run="run", **budgets)
    for name in "cde":  # there it is the run's own
        under_a_cap.release(name * 32, cost, lambda: b"", joined=joined)
    with pytest.raises(UserError, match=r"privacy\.epsilon of the joined sums"):
        under_a_cap.release("f" * 32, cost, lambda: pytest.fail("made"), joined=joined)
