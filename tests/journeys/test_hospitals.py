"""A messy table of four hospitals, one file each, to calibrated private predictions with abstention."""

import csv
import json
from pathlib import Path

import pandas
import pytest

import fedbnn
from fedbnn.cli.app import main
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.ledger import Ledger
from tests.data.tables import hospitals

TOML = """
preset = "private-table"
rounds = 2

[data]
source = "csv"
path = "hospitals"
target = "outcome"
decimal = ","
alignment = 60
calibration = 0.4

[data.columns]
patient_id = { kind = "id" }
age = { kind = "number", unit = "years", low = 0, high = 110 }
sex = { kind = "category", values = ["f", "m"] }
smoker = { kind = "boolean", values = ["nein", "ja"] }
crp = { kind = "number", low = 0, high = 60, optional = true }
admitted = { kind = "date", low = 2022, high = 2024 }

[training]
warmup_epochs = 2
local_epochs = 1

[engine]
debug = true
"""


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert not stopped.value.code


def test_from_messy_files_to_private_predictions_that_abstain(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    hospitals.write(tmp_path / "hospitals", hospitals.records(each=110))
    Path("mine.toml").write_text(TOML, encoding="utf-8")

    call("data", "check", "mine.toml", "--json")
    checked = json.loads(capsys.readouterr().out)
    assert [client["name"] for client in checked["clients"]] == list(hospitals.NAMES)

    call("run", "mine.toml", "--out", "runs/mine")
    spent = [Ledger.read(place).cost().epsilon(1e-5) for place in ledgers_in(Path("runs/mine/ledgers"))]
    assert len(spent) == 4
    assert 0 < max(spent) <= 3

    new = [row | {"patient_id": f"new-{at}"} for at, row in enumerate(hospitals.records(seed=1, each=40)["Graz"])]
    new[0] |= {"age": "-3", "sex": "?!"}
    with Path("new.csv").open("w", newline="", encoding="utf-8") as stream:
        header = [name for name in hospitals.HEADER[::-1] if name != "outcome"]
        writer = csv.DictWriter(stream, header, delimiter=";", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(new)
    asked = ["--alpha", "0.2", "--abstain-risk", "0.3", "--out", "answers.csv"]
    call("predict", "runs/mine", "--client", "Graz", "--input", "new.csv", *asked)
    told = capsys.readouterr().out
    with Path("answers.csv").open(newline="", encoding="utf-8") as stream:
        answers = list(csv.DictReader(stream))
    assert [row["patient_id"] for row in answers] == [f"new-{at}" for at in range(40)]
    assert "age: below 0; sex: not one of its values" in answers[0]["flags"]
    names = {"gesund", "über Norm"}
    assert {row["class"] for row in answers} <= names
    assert all(set(row["set"].split("; ")) <= names and row["set"] for row in answers)
    assert {row["abstain"] for row in answers} <= {"yes", "no"}
    assert "Sets hold the true class of at least 0.8 of new records" in told

    frame = pandas.read_csv("new.csv", sep=";", decimal=",", na_values="NA")
    same = fedbnn.load("runs/mine").predict("Graz", frame[frame.columns[::-1]], alpha=0.2)
    assert same.labels == [row["class"] for row in answers]
    assert same.ids == {"patient_id": [row["patient_id"] for row in answers]}
    assert ["; ".join(flags) for flags in same.flags] == [row["flags"] for row in answers]
    assert [f"{p:.9g}" for p in same.prediction.probs[:, 0].tolist()] == [row["p(gesund)"] for row in answers]
