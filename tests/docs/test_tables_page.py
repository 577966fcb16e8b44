"""The journey of the page on tables: four messy files and a TOML file, to a checked and finished run."""

import json
from pathlib import Path

import pytest

from fedbnn.cli.app import main
from fedbnn.data.tables.coding import Coding
from fedbnn.runs.folder import PREPROCESSING
from tests.docs.pages import blocks

PAGE = "docs/tables.md"


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code, arguments


def test_from_messy_files_to_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = [block.text for block in blocks(PAGE) if block.language == "python"]
    exec(compile(code, PAGE, "exec"), {})
    [config, _] = [block.text for block in blocks(PAGE) if block.language == "toml"]
    Path("mine.toml").write_text(config, encoding="utf-8")

    call("data", "check", "mine.toml", "--out", "check.html", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["clients"]] == ["Aare", "Bodensee", "Chur", "Davos"]
    assert sum(one["missing"]["crp"] for one in found["clients"]) > 0
    assert Path("check.html").stat().st_size > 5000

    small = ["--set", "rounds=1", "--set", "training.warmup_epochs=2", "--set", "engine.debug=true"]
    call("run", "mine.toml", "--out", "runs/hospitals", *small)
    notes = " ".join(capsys.readouterr().err.split())
    assert "column 'crp' is not declared; by the public records it is taken as number" in notes
    assert "taken as category of 'Chirurgie', 'Innere', 'Überwachung'" in notes
    result = json.loads(Path("runs/hospitals/result.json").read_text())
    assert result["class_names"] == ["gesund", "krank"]
    assert result["clients"] == 4
    coding = Coding.from_json((Path("runs/hospitals") / PREPROCESSING).read_text(encoding="utf-8"), PREPROCESSING)
    assert [column.kind for column in coding.columns] == [
        "id", "number", "category", "boolean", "number", "date", "category",
    ]  # fmt: skip
    assert coding.columns[4].optional  # crp has gaps

    # Under a promise, what was guessed in public is told, and nothing of the records.
    private = ["--set", "privacy.mechanism=dp_teacher", "--set", "privacy.epsilon=3"]
    call("run", "mine.toml", "--out", "runs/private", *small, *private)
    told = " ".join(capsys.readouterr().err.split())
    assert "column 'crp' is not declared" in told
    assert "value(s)" in notes
    assert "value(s)" not in told
