"""`fedbnn privacy statement`: from a run to a page, and mistakes in one line."""

import json

import pytest

from fedbnn.privacy.ledger import Budget, Cost, Ledger, Limit
from fedbnn.report.protection import PROTECTIONS
from tests.report.reader import Reader


def ledger(folder):
    with Ledger.open(folder, "f" * 64, "hospital") as opened:
        opened.release("release", "inputs", Cost(0.5), [Limit(Budget(3.0, 1e-5))], lambda: b"noise")
    return folder


@pytest.mark.parametrize(
    ("changes", "mechanism", "unit", "ledgers"),
    [
        (("privacy.mechanism=dp_teacher", "privacy.epsilon=2.5"), "dp_teacher", "record", 3),
        (("method=dp_fedavg", "methods.dp_fedavg.steps=1"), "DP-SGD", "record", 3),
        (
            ("method=dp_fedavg", "methods.dp_fedavg.level=user", "methods.dp_fedavg.delta=0.01"),
            "DP-FedAvg",
            "client",
            1,
        ),
    ],
)
def test_a_private_run_end_to_end(call, tiny, tmp_path, changes, mechanism, unit, ledgers):
    run, out = tmp_path / "run", tmp_path / "out"
    assert call("run", "--out", run, *(part for change in (*tiny, *changes) for part in ("--set", change)))[0] == 0
    code, printed, err = call("privacy", "statement", run, "--out", out, "--name", "St. Mary's")
    assert (code, err) == (0, "")
    assert printed.split("\n") == [str(out / "statement.html"), str(out / "statement.json"), ""]
    data = json.loads((out / "statement.json").read_text())
    spent = json.loads(call("privacy", "spent", run, "--json")[1])
    assert data["epsilon"] == spent["epsilon"]
    assert sum(len(group["sets"]) for group in data["groups"]) == ledgers
    assert {group["unit"] for group in data["groups"]} == {unit}
    assert {release["sent"] for group in data["groups"] for release in group["releases"]} == {
        PROTECTIONS[mechanism].sent
    }
    page = " ".join(" ".join(Reader((out / "statement.html").read_text("utf-8")).text).split())
    assert "St. Mary's" in page
    assert PROTECTIONS[mechanism].sent in page


def test_a_page_in_the_folder_where_one_is(call, tmp_path, monkeypatch):
    ledger(tmp_path / "ledgers" / "one")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert call("privacy", "statement", tmp_path / "ledgers") == (0, "statement.html\nstatement.json\n", "")
    assert json.loads((tmp_path / "here" / "statement.json").read_text())["name"] == "hospital"


def test_a_broken_ledger_gives_a_page_an_error_and_exit_code_1(call, tmp_path):
    (ledger(tmp_path / "ledgers" / "one") / "head.json").unlink()
    code, printed, err = call("privacy", "statement", tmp_path / "ledgers", "--out", tmp_path)
    assert (code, printed.count("\n"), err.count("\n")) == (1, 2, 1)
    assert "head.json is missing" in err
    assert "What was spent is not known" in (tmp_path / "statement.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "no folder nowhere"),
        (("empty",), "no ledger in empty"),
        (("one", "--delta", 0), "delta = 0:"),
        (("one", "--delta", "nan"), "delta = nan:"),
        (("one", "--out", "file"), "file is not a folder"),
        (("one", "--out", "file/below"), "file"),
    ],
)
def test_mistakes_are_one_line(call, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    ledger(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    code, printed, err = call("privacy", "statement", *arguments)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert words in err


def test_a_run_with_secure_aggregation_has_both_guarantees(call, tiny, tmp_path):
    changes = (*tiny, "privacy.mechanism=dp_moments", "privacy.aggregation=secure", "privacy.dimensions=10")
    run = tmp_path / "run"
    assert call("run", "--out", run, *(part for change in changes for part in ("--set", change)))[0] == 0
    assert call("privacy", "statement", run, "--out", tmp_path)[0] == 0
    data = json.loads((tmp_path / "statement.json").read_text())
    for group in data["groups"]:
        assert 0 < group["epsilon_if_only_sums_are_seen"] <= 3 < group["epsilon"] <= 8
    assert "secure aggregation" in (tmp_path / "statement.html").read_text("utf-8")
