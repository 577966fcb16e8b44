import json
import re

import pytest

from fedbnn.runs.config import toml_value
from tests.data.tables.hospitals import NAMES, records, write


@pytest.fixture
def config(tmp_path):
    rows = records(each=20)
    rows["Graz"][0] |= {"sex": "<script>alert(1)</script>"}
    write(tmp_path / "hospitals", rows)
    file = tmp_path / "mine.toml"
    file.write_text(
        f"[data]\nsource = 'csv'\npath = {toml_value(str(tmp_path / 'hospitals'))}\ntarget = 'outcome'\ndecimal = ','\n"
        "alignment = 20\n[data.columns.sex]\nkind = 'category'\nvalues = ['f', 'm', '</svg><b>']\n"
        "[partition]\nkind = 'natural'\n",
        encoding="utf-8",
    )
    return file


def test_check_as_tables_json_and_a_page(config, tmp_path, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, shown, _ = call("data", "check", config, "--out", tmp_path / "check.html")
    assert code == 0
    code, printed, _ = call("data", "check", config, "--json")
    assert code == 0
    found = json.loads(printed)
    assert [one["name"] for one in found["clients"]] == list(NAMES)
    for one in found["clients"]:
        row = next(line for line in shown.splitlines() if line.startswith(one["name"]))
        expected = [one["records"], one["tested"], *one["classes"].values(), sum(one["missing"].values())]
        assert [int(number) for number in row.split()[1:6]] == expected
    page = (tmp_path / "check.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert "</svg><b>" not in page
    assert not re.search(r'(?:src|href)="', page)
    for one in found["clients"]:
        for name, count in one["classes"].items():
            assert f"{one['name']}: {count} of {name}" in page
        assert f"{one['name']}, crp: {one['missing']['crp']} of {one['records']} missing" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--site", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["--site", "site.toml", "--set", "seed=1"], "--site is a site's own file"),
        (["--out", "check.txt"], "--out check.txt: its name must end in .html"),
        (["--set", "data.columns.sex.knd=number"], "unknown key 'data.columns.sex.knd'; did you mean 'kind'?"),
        (["--set", "data.columns.sex.low=1"], "data.columns.sex: low is for number and date columns"),
        (["--set", "data.path=7"], "data.path = 7: "),
        (["--set", "data.delimiter=x"], "data.delimiter = 'x': Input should be"),
    ],
)
def test_mistakes_are_one_line(config, arguments, words, call):
    code, _, errors = call("data", "check", *([] if "--site" in arguments else [config]), *arguments)
    assert code == 2
    assert words in " ".join(errors.split())
    assert errors.startswith("error: ")
