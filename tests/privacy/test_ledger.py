import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.privacy import gaussian_epsilon
from fedbnn.privacy.cost import Sampled
from fedbnn.privacy.ledger import Budget, Cost, Ledger, Limit

CAP = Budget(3.0, 1e-5)
MU = 1 / 3.1095


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk():
    """What fsync is for is tested by `dying_client`, which keeps its own book of what is on disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "clients" / "ledger"


def opened(folder, fingerprint="data", owner="client"):
    return Ledger.open(folder, fingerprint, owner)


def release(ledger, name, inputs, mu, cap, make):
    return ledger.release(name, inputs, Cost(mu), [Limit(cap)], make)


def noise():
    return os.urandom(16)


def never():
    raise AssertionError("make() must not be called")


def fill(folder, names=("one", "two")):
    with opened(folder) as ledger:
        return [release(ledger, name, "inputs", MU, CAP, noise) for name in names]


def lines(folder):
    return (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def rewrite(folder, rows):
    """A ledger whose chain and head are right, whatever its rows say."""
    previous, data = "", b""
    for row in rows:
        line = json.dumps({**row, "previous": previous}).encode() + b"\n"
        previous, data = hashlib.sha256(line).hexdigest(), data + line
    (folder / "ledger.jsonl").write_bytes(data)
    (folder / "head.json").write_text(json.dumps({"count": len(rows), "sha256": previous}) + "\n")


def refused(folder, match):
    """Both ways to open it say the same; nothing on disk changes."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=match) as read:
        Ledger.read(folder)
    with pytest.raises(UserError, match=match) as error, opened(folder):
        pass
    assert str(error.value) == str(read.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What is spent


def test_five_releases_spend_the_cap_and_the_sixth_is_refused(folder):
    spent = []
    with opened(folder) as ledger:
        assert ledger.spent(1e-5) == 0
        assert ledger.cost().mu == 0
        for number in range(5):
            release(ledger, f"round-{number}", "inputs", MU, CAP, noise)
            spent.append(ledger.spent(1e-5))
        before = lines(folder)
        with pytest.raises(
            UserError, match=r"epsilon 3\.000 is spent .* would add 0\.3\d\d, .* cap is 3 \(delta 1e-05\)"
        ):
            release(ledger, "round-5", "inputs", MU, CAP, never)
    assert [round(epsilon, 3) for epsilon in spent] == [1.222, 1.793, 2.249, 2.644, 3.000]
    assert max(spent) <= 3
    assert lines(folder) == before
    assert not (folder / "releases" / "round-5.bin").exists()


def test_restarts_keep_what_was_spent_and_other_caps_count_it(folder):
    for number in range(3):
        with opened(folder) as ledger:
            release(ledger, f"run-{number}", "inputs", MU, CAP, noise)
    with opened(folder) as ledger:
        assert ledger.spent(1e-5) == gaussian_epsilon(math.hypot(MU, MU, MU), 1e-5)
        with pytest.raises(UserError, match="the cap is 2 "):
            release(ledger, "more", "inputs", MU, Budget(2.0, 1e-5), never)
        with pytest.raises(UserError, match="delta 1e-09"):
            release(ledger, "more", "inputs", MU, Budget(3.0, 1e-9), never)
        release(ledger, "more", "inputs", MU, CAP, noise)


def test_far_too_much_is_refused(folder):
    with opened(folder) as ledger, pytest.raises(UserError, match="would add more than a million"):
        release(ledger, "all", "inputs", 1.7e308, CAP, never)


def test_entries_and_read(folder):
    data = fill(folder)
    with opened(folder) as ledger:
        record = Ledger.read(folder)  # no lock needed
        assert record.entries == ledger.entries
    assert (record.fingerprint, record.owner) == ("data", "client")
    assert [(entry.release, entry.inputs, entry.cost, entry.cap) for entry in record.entries] == [
        ("one", "inputs", Cost(MU), CAP),
        ("two", "inputs", Cost(MU), CAP),
    ]
    assert [entry.sha256 for entry in record.entries] == [hashlib.sha256(value).hexdigest() for value in data]
    assert all(entry.time.endswith("+00:00") for entry in record.entries)
    assert record.cost().mu == math.hypot(MU, MU)
    assert record.spent(1e-5) == gaussian_epsilon(record.cost().mu, 1e-5)


def test_reading_makes_nothing(folder):
    with pytest.raises(UserError, match="holds no ledger"):
        Ledger.read(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    "value", [(0, 0.1), (-1, 0.1), (math.nan, 0.1), (math.inf, 0.1), (1, 0), (1, 1), (1, math.nan)]
)
def test_a_budget_that_cannot_be(value):
    with pytest.raises(UserError, match=r"epsilon is|delta is"):
        Budget(*value)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("release"), st.sampled_from("abcdef"), st.floats(0, 0.5)),
        st.tuples(st.just("fail"), st.sampled_from("abcdef"), st.floats(1e-200, 0.5)),
        st.tuples(st.just("again"), st.sampled_from("abcdef"), st.just(0.0)),
        st.tuples(st.just("open"), st.just(""), st.just(0.0)),
    ),
    max_size=25,
)


def broken():
    raise ArithmeticError


@given(OPERATIONS)
def test_any_sequence_adds_up(operations):
    charged: dict[str, float] = {}
    done: dict[str, bytes] = {}
    large = Budget(100.0, 1e-5)
    with tempfile.TemporaryDirectory() as place:
        todo = list(operations)
        while todo:
            with opened(Path(place)) as ledger:
                while todo:
                    what, name, mu = todo.pop(0)
                    if what == "open":
                        break
                    if what == "again" and name not in charged:
                        continue
                    if name in charged and (what == "again" or charged[name] == mu):
                        data = release(ledger, name, "in", charged[name], large, never if name in done else noise)
                        assert data == done.setdefault(name, data)
                    elif name in charged:
                        with pytest.raises(UserError, match="other cost"):
                            release(ledger, name, "in", mu, large, never)
                    elif what == "fail":
                        with pytest.raises(ArithmeticError):
                            release(ledger, name, "in", mu, large, broken)
                        charged[name] = mu
                    else:
                        done[name] = release(ledger, name, "in", mu, large, noise)
                        charged[name] = mu
                    assert {entry.release: entry.cost.mu for entry in ledger.entries} == charged
                    assert {entry.release for entry in ledger.entries if entry.sha256} == set(done)
                    exact = math.sqrt(math.fsum(value**2 for value in charged.values()))
                    assert ledger.cost().mu == pytest.approx(exact, rel=1e-15, abs=1e-150)
        if operations:
            assert {entry.release: entry.cost.mu for entry in Ledger.read(Path(place)).entries} == charged


# One release, one noise


def test_asked_again_the_stored_bytes_come_back(folder):
    first, second = fill(folder)
    assert first != second
    before = lines(folder)
    for _ in range(2):
        with opened(folder) as ledger:
            assert release(ledger, "one", "inputs", MU, CAP, never) == first
            assert release(ledger, "two", "inputs", MU, Budget(1e-3, 1e-9), never) == second  # it has left long ago
    assert lines(folder) == before


def test_make_is_called_once_and_after_the_charge(folder):
    calls = []

    def make():
        calls.append([json.loads(line)["kind"] for line in lines(folder)])
        return b""

    with opened(folder) as ledger:
        assert release(ledger, "one", "inputs", MU, CAP, make) == b""
        assert release(ledger, "one", "inputs", MU, CAP, make) == b""
    assert calls == [["ledger", "charge"]]


@pytest.mark.parametrize(("inputs", "mu", "what"), [("others", MU, "inputs"), ("inputs", MU * (1 + 1e-15), "cost")])
@pytest.mark.parametrize("done", [True, False])
def test_the_same_name_for_another_release(folder, inputs, mu, what, done):
    with opened(folder) as ledger:
        if done:
            release(ledger, "one", "inputs", MU, CAP, noise)
        else:
            with pytest.raises(ArithmeticError):
                release(ledger, "one", "inputs", MU, CAP, broken)
        with pytest.raises(UserError, match=f"'one' was charged with other {what}"):
            release(ledger, "one", inputs, mu, CAP, never)


@pytest.mark.parametrize("damage", ["missing", "changed", "shortened", "link"])
def test_damaged_bytes_are_never_made_again(folder, damage):
    fill(folder)
    path = folder / "releases" / "one.bin"
    data = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "shortened":
        path.write_bytes(data[:-1])
    elif damage == "link":
        path.symlink_to("two.bin")
    with opened(folder) as ledger, pytest.raises(UserError, match=r"missing|damaged|symbolic link"):
        release(ledger, "one", "inputs", MU, CAP, never)


def test_a_failure_in_make_keeps_the_charge_and_the_release_can_be_completed(folder):
    with opened(folder) as ledger:
        with pytest.raises(ArithmeticError):
            release(ledger, "one", "inputs", MU, CAP, broken)
        assert ledger.cost().mu == MU
        with pytest.raises(TypeError, match="must return bytes"):
            release(ledger, "one", "inputs", MU, CAP, lambda: "text")
    with opened(folder) as ledger:
        assert ledger.cost().mu == MU
        with pytest.raises(UserError, match=r"would add 0\.000"):  # the cap was lowered since
            release(ledger, "one", "inputs", MU, Budget(1.0, 1e-5), never)
        data = release(ledger, "one", "inputs", MU, CAP, noise)
        assert data == release(ledger, "one", "inputs", MU, CAP, never)
        assert ledger.cost().mu == MU


def test_stored_bytes_are_used_although_the_done_line_is_missing(folder):
    data = fill(folder, ["one"])[0]
    rewrite(folder, [json.loads(line) for line in lines(folder)[:2]])
    with opened(folder) as ledger:
        assert ledger.entries[0].sha256 is None
        assert release(ledger, "one", "inputs", MU, CAP, never) == data
        assert ledger.entries[0].sha256 is not None


NAMES = ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "../one", "a\\b", "a b", "a\n", "a\0", "ä", "٣", "x" * 101]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_not_allowed(folder, name):
    with opened(folder) as ledger:
        with pytest.raises(UserError, match="release id"):
            release(ledger, name, "inputs", MU, CAP, never)
        assert ledger.cost().mu == 0


@pytest.mark.parametrize("name", ["x" * 100, "a..b", "-", "_", "Round-3.teacher_1", "one.bin", "one.bin.tmp"])
def test_names_that_are_allowed(folder, name):
    data = fill(folder, [name])
    assert fill(folder, [name]) == data


@pytest.mark.parametrize("mu", [math.nan, -0.1, math.inf])
def test_mu_that_cannot_be(folder, mu):
    with opened(folder) as ledger, pytest.raises(ValueError, match="finite numbers, at least 0"):
        release(ledger, "one", "inputs", mu, CAP, never)


def test_inputs_must_be_named(folder):
    with opened(folder) as ledger, pytest.raises(UserError, match="digest of its inputs"):
        release(ledger, "one", "", MU, CAP, never)


# One at a time


def test_a_second_opener_is_told_which_folder(folder):
    with opened(folder) as ledger:
        with pytest.raises(UserError, match="is in use by another process") as error, opened(folder):
            pass
        assert str(folder) in str(error.value)
        release(ledger, "one", "inputs", MU, CAP, noise)
    fill(folder)


def test_a_ledger_is_of_no_use_after_its_end_within_itself_or_in_another_process(folder):
    with opened(folder) as ledger:
        with pytest.raises(RuntimeError, match="one release at a time"):
            release(ledger, "one", "inputs", MU, CAP, lambda: release(ledger, "one", "inputs", MU, CAP, noise))
        ledger._process += 1
        with pytest.raises(RuntimeError, match="not open in this process"):
            release(ledger, "two", "inputs", MU, CAP, never)
        ledger._process -= 1
    with pytest.raises(RuntimeError, match="not open"):
        release(ledger, "two", "inputs", MU, CAP, never)


def test_a_reader_beside_a_writer_sees_no_damage(folder):
    fill(folder, ["first"])
    stop = threading.Event()
    problems: list[UserError] = []

    def look():
        seen = 0
        while not stop.is_set():
            try:
                now = len(Ledger.read(folder).entries)
            except UserError as error:
                problems.append(error)
                return
            assert now >= seen
            seen = now

    reader = threading.Thread(target=look)
    reader.start()
    with opened(folder) as ledger:
        for number in range(100):
            release(ledger, str(number), "inputs", 1e-3, CAP, noise)
    stop.set()
    reader.join()
    assert not problems


# Damage


@pytest.mark.parametrize(
    ("line", "found"), [(0, "line 2"), (1, "line 3"), (2, "line 4"), (3, "line 5"), (4, "head.json")]
)
def test_a_changed_line(folder, line, found):
    fill(folder)
    changed = lines(folder)
    row = json.loads(changed[line])
    row["time"] = "2001-01-01T00:00:00+00:00"
    changed[line] = json.dumps(row).encode() + b"\n"
    (folder / "ledger.jsonl").write_bytes(b"".join(changed))
    refused(folder, rf"{found}.*was changed; restore the newest backup")


@pytest.mark.parametrize("kept", [[1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 3, 4], [0, 2, 1, 3, 4], [0, 1, 1, 2, 3, 4]])
def test_lines_left_out_swapped_or_repeated(folder, kept):
    fill(folder)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines(folder)[number] for number in kept))
    refused(folder, "does not follow from the line before")


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_lines_missing_at_the_end(folder, kept):
    fill(folder)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines(folder)[:kept]))
    refused(folder, f"has {kept} lines and head.json counts 5: lines are missing at the end")


JUNK = [
    b"\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"{\n",
    b"\xff\xfe\n",
    b'{"previous": NaN}\n',
    b'{"previous": 1e999}\n',
    b"[" * 100_000 + b"\n",
    b"{}\r\n",
]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_line_of_something_else(folder, junk, place):
    fill(folder)
    changed = lines(folder)
    changed.insert(place, junk)
    (folder / "ledger.jsonl").write_bytes(b"".join(changed))
    refused(folder, rf"line {place + 1} of ledger\.jsonl (is not valid|does not follow)")


def test_no_lines(folder):
    fill(folder)
    (folder / "ledger.jsonl").write_bytes(b"")
    refused(folder, "ledger.jsonl is empty")


def test_a_torn_line_that_head_counts(folder):
    fill(folder)
    data = (folder / "ledger.jsonl").read_bytes()
    (folder / "ledger.jsonl").write_bytes(data[:-1])
    refused(folder, "line 5 .* is torn; restore the newest backup")


def test_a_torn_line_that_head_does_not_count(folder):
    fill(folder)
    data = (folder / "ledger.jsonl").read_bytes()
    (folder / "ledger.jsonl").write_bytes(data + b'{"previous": "')
    refused(folder, "line 6 .* is torn: .* remove this one line, and nothing else, to go on")
    (folder / "ledger.jsonl").write_bytes(data)
    fill(folder)


CHANGES = [
    (1, {"mu": -0.1}, "mu is -0.1"),
    (1, {"mu": 1}, "field 'mu'"),
    (1, {"mu": "0.1"}, "field 'mu'"),
    (1, {"mu": True}, "field 'mu'"),
    (1, {"mu": math.nan}, "not valid"),
    (1, {"mu": math.inf}, "not valid"),
    (1, {"extra": 1}, "field 'extra'"),
    (1, {"epsilon": 0.0}, "a cap that cannot be"),
    (1, {"delta": 1.0}, "a cap that cannot be"),
    (1, {"kind": "refund"}, "unknown kind 'refund'"),
    (1, {"kind": ["charge"]}, "unknown kind"),
    (1, {"kind": "done"}, "field"),
    (1, {"time": None}, "field 'time'"),
    (2, {"release": "two"}, "done without being charged"),
    (3, {"release": "one"}, "charged twice"),
    (4, {"release": "one"}, "done without being charged"),
    (1, {"steps": -1}, "-1 steps with noise"),
    (1, {"steps": 3}, "3 steps with noise 0.0"),
    (1, {"steps": True}, "field 'steps'"),
    (1, {"noise": 1.0}, "0 steps with noise 1.0"),
    (1, {"rate": 2.0, "noise": 1.0, "steps": 1}, "at rate 2.0"),
    (1, {"gap": -1.0}, "gap is -1.0"),
    (1, {"joined": -1.0}, "mu is"),
    (1, {"run": None}, "field 'run'"),
    (4, {"sha256": 5}, "field 'sha256'"),
    (0, {"version": 3}, "version 3, understood are 1 to 2"),
    (0, {"version": "1"}, "version '1'"),
    (0, {"fingerprint": 3}, "field 'fingerprint'"),
    (0, {"kind": "charge"}, "field"),
]


@pytest.mark.parametrize(("line", "change", "problem"), CHANGES)
def test_lines_that_make_no_sense_though_the_chain_is_right(folder, line, change, problem):
    fill(folder)
    rows = [json.loads(text) for text in lines(folder)]
    rows[line] |= change
    rewrite(folder, rows)
    refused(folder, problem)


def test_a_missing_field_and_a_second_first_line(folder):
    fill(folder)
    rows = [json.loads(text) for text in lines(folder)]
    rewrite(folder, [rows[0], {key: value for key, value in rows[1].items() if key != "mu"}])
    refused(folder, "field 'mu'")
    rewrite(folder, [rows[0], rows[0]])
    refused(folder, "kind 'ledger' here")


HEADS = ["", "{}", "[1]", '{"count": 5}', '{"count": 0, "sha256": ""}', '{"count": "5", "sha256": ""}', "5"]


@pytest.mark.parametrize("head", HEADS)
def test_a_head_that_makes_no_sense(folder, head):
    fill(folder)
    (folder / "head.json").write_text(f"{head}\n")
    refused(folder, "head.json is not valid")


def test_missing_files(folder):
    fill(folder)
    head = (folder / "head.json").read_bytes()
    (folder / "head.json").unlink()
    refused(folder, "head.json is missing")
    (folder / "head.json").write_bytes(head)
    (folder / "ledger.jsonl").unlink()
    refused(folder, "ledger.jsonl is missing, while head.json counts lines: 5")
    (folder / "head.json").unlink()
    with pytest.raises(UserError, match="ledger is missing, while releases are stored: one, two"), opened(folder):
        pass


def test_an_older_ledger_beside_newer_releases(folder):
    fill(folder, ["one"])
    older = {name: (folder / name).read_bytes() for name in ("ledger.jsonl", "head.json")}
    fill(folder, ["two"])
    for name, data in older.items():
        (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=r"never charged \(two\): the ledger is an older one"), opened(folder):
        pass


def test_bytes_that_appear_out_of_nowhere(folder):
    with opened(folder) as ledger:
        (folder / "releases" / "one.bin").write_bytes(b"planted")
        with pytest.raises(UserError, match="one is stored though it was never charged"):
            release(ledger, "one", "inputs", MU, CAP, never)


def test_one_line_more_than_head_is_repaired(folder):
    fill(folder)
    newest = (folder / "head.json").read_bytes()
    four = [json.loads(line) for line in lines(folder)[:4]]
    all_lines = (folder / "ledger.jsonl").read_bytes()
    rewrite(folder, four)
    (folder / "ledger.jsonl").write_bytes(all_lines)
    assert Ledger.read(folder).cost().mu == math.hypot(MU, MU)
    assert (folder / "head.json").read_bytes() != newest
    with opened(folder):
        assert (folder / "head.json").read_bytes() == newest
    rewrite(folder, four[:3])
    (folder / "ledger.jsonl").write_bytes(all_lines)
    refused(folder, "has 5 lines and head.json counts 3: head.json is not of this file")


def test_a_ledger_that_was_only_just_made_needs_no_head(folder):
    fill(folder, [])
    (folder / "head.json").unlink()
    fill(folder)
    assert (folder / "head.json").exists()


def test_the_ledger_of_other_data(folder):
    fill(folder)
    with pytest.raises(UserError, match="ledger of other data"), opened(folder, "others"):
        pass


def test_another_name_is_no_other_owner(folder):
    """Names come from the terms of a run: with a new one there is no new budget."""
    fill(folder)
    with opened(folder, owner="else") as ledger:
        assert ledger.cost() == Cost(math.hypot(MU, MU))


def test_a_ledger_of_version_1_is_counted_but_not_added_to(folder):
    fill(folder)
    rows = [json.loads(text) for text in lines(folder)]
    new = ("run", "noise", "rate", "steps", "gap", "joined", "records")
    old = [{key: value for key, value in row.items() if key not in new} for row in rows]
    rewrite(folder, [old[0] | {"version": 1}, *old[1:]])
    assert Ledger.read(folder).cost() == Cost(math.hypot(MU, MU))
    with pytest.raises(UserError, match="version 1: it is counted, but not added to"), opened(folder):
        pass


def test_releases_over_samples_are_charged_and_read_again(folder):
    cost = Cost(sampled=(Sampled(2.5, 0.25, 8),), gap=1e-9)
    with opened(folder) as ledger:
        for name in ("one", "two"):
            ledger.release(name, "inputs", cost, [Limit(CAP)], noise, run="r", joined=0.5)
        before = ledger.entries
        assert ledger.cost() == Cost(sampled=(Sampled(2.5, 0.25, 16),), gap=2e-9)
    assert Ledger.read(folder).entries == before
    assert {(entry.run, entry.joined) for entry in before} == {("r", 0.5)}


def test_a_limit_on_one_run_counts_that_run_alone(folder):
    cap, terms = Budget(6.0, 1e-5), Budget(1.3, 1e-5)
    with opened(folder) as ledger:

        def asked(name, run):
            limits = [Limit(cap), Limit(terms, run=run, name="the budget of these terms")]
            return ledger.release(name, "inputs", Cost(MU), limits, noise, run=run)

        asked("one", "first")  # 1.222 each
        asked("two", "second")
        with pytest.raises(UserError, match=r"epsilon 1\.222 is spent .* the budget of these terms is 1\.3"):
            asked("three", "first")
        with pytest.raises(UserError, match=r"epsilon 5\.859 is spent .* the cap is 6"):
            ledger.release("four", "inputs", Cost(MU), [Limit(cap, elsewhere=Cost(1.2))], never)


@pytest.mark.parametrize("name", [("", "client"), ("data", "")])
def test_a_ledger_needs_names(folder, name):
    with pytest.raises(UserError, match="fingerprint of its data and the name of its owner"), opened(folder, *name):
        pass


@pytest.mark.parametrize("name", ["ledger.jsonl", "head.json", ".lock", "releases"])
def test_links_are_not_followed(folder, tmp_path, name):
    fill(folder)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="symbolic link"), opened(folder):
        pass


@pytest.mark.parametrize("name", ["ledger.jsonl", "head.json", "releases", "."])
def test_files_and_folders_mixed_up(folder, name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name in ("releases", "."):
        path.write_text("")
    else:
        path.mkdir()
    with (
        pytest.raises(UserError, match=name.replace(".", r"\.") if name != "." else "ledger is not a folder"),
        opened(folder),
    ):
        pass


# The disk


def test_a_full_disk_leaves_no_half_line_and_no_release(folder, monkeypatch):
    fill(folder, ["one"])
    before = lines(folder)
    write = os.write

    def full(file, data):
        if len(data) > 100:
            return write(file, data[:50])
        raise OSError(28, "No space left on device")

    with opened(folder) as ledger:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(UserError, match=r"ledger\.jsonl cannot be used: No space left"):
            release(ledger, "two", "inputs", MU, CAP, never)
        monkeypatch.undo()
        with pytest.raises(UserError, match="writing failed before: open it again"):
            release(ledger, "two", "inputs", MU, CAP, never)
    assert lines(folder) == before
    fill(folder)


def test_a_line_that_is_not_secured_lets_nothing_out(folder, monkeypatch):
    def failing(file):
        raise OSError(5, "Input/output error")

    with opened(folder) as ledger:
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(UserError, match="Input/output error"):
            release(ledger, "one", "inputs", MU, CAP, never)


def test_somebody_else_writes_in_spite_of_the_lock(folder):
    with opened(folder) as ledger:
        with (folder / "ledger.jsonl").open("ab") as file:
            file.write(b"{}\n")
        with pytest.raises(UserError, match="changed by somebody else"):
            release(ledger, "one", "inputs", MU, CAP, never)


# Death at every step


def die(place, mode):
    """Let clients die; (folder, notes by kind and name, outcomes) of each."""
    program = Path(__file__).with_name("dying_client.py")
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, str(program), str(place), mode],
        env=os.environ | one,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    deaths = []
    for number, outcomes in enumerate(json.loads(result.stdout)):
        notes = place / str(number) / "notes"
        written = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        deaths.append((place / str(number), written, outcomes))
    return deaths


@pytest.mark.parametrize(("mode", "torn"), [("kill", 4), ("power", 0), ("twice", None)])
def test_wherever_a_client_dies_nothing_is_undercounted_and_no_noise_is_drawn_twice(tmp_path, mode, torn):
    deaths = die(tmp_path, mode)
    outcomes = Counter(outcome for death in deaths for outcome in death[2])
    assert outcomes["killed"] >= (100 if mode == "twice" else 50)
    found_torn = 0
    for folder, notes, outcomes in deaths:
        path = folder / "ledger"
        file = path / "ledger.jsonl"
        if file.exists() and not file.read_bytes().endswith(b"\n"):
            found_torn += 1
            refused(path, "is torn: .* remove this one line")
            file.write_bytes(b"".join(line for line in lines(path) if line.endswith(b"\n")))
        elif mode != "twice":
            assert "refused" not in outcomes
        charged = {entry.release for entry in Ledger.read(path).entries} if file.exists() else set()
        assert {note[1] for note in notes if note[0] == "entered"} <= charged

        seen = {
            name: {bytes.fromhex(note[2]) for note in notes if note[:2] == ["returned", name]}
            for name in ("one", "two")
        }
        with opened(path) as ledger:
            for name, values in seen.items():
                values.add(release(ledger, name, "inputs", 0.25, CAP, never if values else noise))
                assert release(ledger, name, "inputs", 0.25, CAP, never) in values
                assert len(values) == 1
        assert [entry.cost.mu for entry in Ledger.read(path).entries] == [0.25, 0.25]
    assert torn in (None, found_torn)
