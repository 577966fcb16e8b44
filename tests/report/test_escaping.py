"""Names come from anybody's data: on every page they are text, and make no element and no attribute.

Each page is made twice, with plain names and with hostile ones. Both must have the same elements with the same
attributes in the same order, whatever the names say.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fedbnn.data.check import ColumnLooks, DataCheck, Holding
from fedbnn.deployment.statement import statement
from fedbnn.privacy.ledger import Budget, Cost, Ledger, Limit
from fedbnn.report import check_page, statement_page
from fedbnn.report.write import write_report
from fedbnn.reproduce import page
from fedbnn.reproduce.sections import section
from tests.report.reader import Reader
from tests.report.samples import sample_result, write_run

ROOT = Path(__file__).resolve().parents[2]
EVIL = (
    "<script>alert(1)</script>",
    '"onload="alert(1)',
    "' onmouseover='alert(1)",
    "</title><img src=x onerror=alert(1)>",
    "</style></svg><b>",
    "--><iframe src=//evil.example>",
    "]]><a href=javascript:alert(1)>",
    "{{ 7 * 7 }}{% include 'x' %}",
    "&lt;b&gt;&#60;b&#62;",
    "\x1b[2J\x07\x00",
)
Name = Callable[[str], str]


def plain(kind: str) -> str:
    return f"a {kind}"


def hostile(which: str) -> Name:
    return lambda kind: f"{kind}{which}"


def run(name: Name, folder: Path) -> str:
    result = sample_result(rounds=2, clients=3)
    for kind in ("method", "dataset", "split", "fedbnn_version"):
        result[kind] = name(kind)
    result["class_names"] = [name(f"class {number}") for number in range(10)]
    result["per_client"]["name"] = [name(f"client {number}") for number in range(3)]
    result["per_client"]["model"] = [name("model")] * 3
    result |= {"set_aside": [name("client 1")], "attackers": [name("client 2")], "mechanism": name("mechanism")}
    result |= {"epsilon_spent": 1.0, "delta": 1e-5, "privacy_unit": "record"}
    config = {name("table"): {name("key"): [name("value"), {"a": name("inner")}]}}
    return write_report(write_run(folder / "run", result, config)).read_text("utf-8")


def comparison(name: Name, folder: Path) -> str:
    methods = [name("method 0"), name("method 1")]
    for number in range(2):
        result = sample_result(rounds=2, clients=3) | {"method": methods[number]}
        write_run(folder / f"run-{number}", result, {name("key"): name(f"value {number}")})
    runs = [{"method": method, "seed": 0, "folder": f"run-{number}"} for number, method in enumerate(methods)]
    (folder / "comparison.json").write_text(json.dumps({"runs": runs}))
    return write_report(folder).read_text("utf-8")


def data_check(name: Name, folder: Path) -> str:
    classes, columns = [name("class 0"), name("class 1")], [name("column 0"), name("column 1")]
    clients = tuple(
        Holding(name(f"client {number}"), 9, 2, dict.fromkeys(classes, 4), dict.fromkeys(columns, 1), 0, 0)
        for number in range(2)
    )
    looks = tuple(ColumnLooks(column, name("kind"), 1, 0.5, name("looks")) for column in columns)
    return check_page.render(DataCheck(name("source"), 5, 2, clients, looks, (name("note"),)))


def privacy_statement(name: Name, folder: Path) -> str:
    with Ledger.open(folder, name("f" * 64), name("owner")) as ledger:
        ledger.release("r", "inputs", Cost(0.5), [Limit(Budget(3.0, 1e-5))], lambda: b"noise", run=name("run"))
    made = replace(statement(folder, 1e-5), name=name("name"), notes=(name("note"),), folder=name("folder"))
    return statement_page.render(made)


FREE = ("title", "reading", "study", "x", "label", "caption")


def study(value: Any, name: Name) -> Any:
    """A study with other words wherever words are free."""
    if isinstance(value, list):
        return [study(one, name) for one in value]
    if not isinstance(value, dict):
        return value
    told = {key: study(one, name) for key, one in value.items()}
    told |= {key: name(f"{one}{key}") for key, one in value.items() if key in FREE and isinstance(one, str)}
    if "row_titles" in value:
        told["row_titles"] = {row: name(title) for row, title in value["row_titles"].items()}
        told["changed"] = [name("change")]
    return told


def results(name: Name, folder: Path) -> str:
    kinds = ("pretrained", "ad_size", "calibration", "cost")
    written = [json.loads((ROOT / "results" / "cpu" / f"{kind}.json").read_text()) for kind in kinds]
    return page.render(name("title"), [name("about")], [section(study(one, name)) for one in written])


class Structure(Reader):
    """Every element with the names of its attributes, in order."""

    def __init__(self, text: str) -> None:
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        super().__init__(text)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super()._note(tag, attrs)
        self.elements.append((tag, tuple(name for name, _ in attrs)))


@pytest.mark.parametrize("made", [run, comparison, data_check, privacy_statement, results])
def test_names_make_no_element_and_no_attribute(made: Callable[[Name, Path], str], tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    expected = Structure(made(plain, tmp_path / "plain"))
    assert len(expected.elements) > 50
    for number, evil in enumerate(EVIL):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = made(hostile(evil), folder)
        found = Structure(text)
        assert found.elements == expected.elements
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", text)  # what a terminal would obey
        shown = evil.replace("\x1b", "\ufffd").replace("\x07", "\ufffd").replace("\x00", "\ufffd")
        assert shown in " ".join(found.text)  # all of it, as text


def test_the_page_that_watches_makes_text_of_names_and_nothing_else() -> None:
    """Its HTML holds nothing of a run; its script has no way to make markup of what it is told."""
    here = files("fedbnn.runs.watch")
    assert "{{" not in here.joinpath("page.html").read_text("utf-8")
    script = here.joinpath("page.js").read_text("utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function("):
        assert way not in script
    assert not re.search(r"""setAttribute\(["'](?:on|href|src|style)""", script)
