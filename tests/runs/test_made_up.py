"""A public table from noisy sums: what it takes, what it costs, and that a federation runs on it."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedbnn.base.errors import UserError
from fedbnn.cli.app import main
from fedbnn.data import PartitionSettings, federate, load_dataset
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.privacy import Budget
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.ledger import Ledger
from fedbnn.runs.config import Config
from fedbnn.runs.made_up import made_up, written
from tests.data.tables import hospitals

COLUMNS = hospitals.DECLARED | {
    "crp": ColumnSettings("number", low=0, high=60, optional=True),
    "admitted": ColumnSettings("date", low=2022, high=2024, format="%d.%m.%Y"),
    "smoker": ColumnSettings("boolean", values=("nein", "ja")),
}
BUDGET = Budget(2.0, 1e-5)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    hospitals.write(tmp_path / "hospitals", hospitals.records(each=60))
    data = hospitals.settings(tmp_path / "hospitals", columns=COLUMNS)
    return Config(data=data, partition=PartitionSettings(kind="natural"))


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), delimiter=";"))


def test_made_up_records_look_like_the_columns_that_were_declared(config: Config, tmp_path: Path) -> None:
    copula, codes = made_up(config, BUDGET, tmp_path / "ledgers")
    rows = rows_of(written(codes, copula.sample(300, 0), config.data.layout))
    assert len(rows) == 300
    assert set(rows[0]) == {"age", "sex", "smoker", "crp", "admitted"}  # no id, no outcome
    assert {row["sex"] for row in rows} <= {"f", "m", ""}
    assert {row["smoker"] for row in rows} <= {"nein", "ja"}
    ages = [float(row["age"].replace(",", ".")) for row in rows]
    assert min(ages) >= 0
    assert max(ages) <= 110
    assert {row["admitted"][-4:] for row in rows} <= {"2022", "2023", "2024"}
    assert any(row["crp"] == "" for row in rows)


def test_with_a_large_budget_they_have_the_records_means(config: Config, tmp_path: Path) -> None:
    copula, codes = made_up(config, Budget(1e5, 1e-5), tmp_path / "ledgers")
    rows = rows_of(written(codes, copula.sample(4000, 0), config.data.layout))
    real = [row for name in hospitals.NAMES for row in hospitals.records(each=60)[name]]
    for column in ("age", "crp"):
        means = [
            np.mean([float(row[column].replace(",", ".")) for row in one if row[column] not in ("", "NA")])
            for one in (rows, real)
        ]
        assert means[0] == pytest.approx(means[1], rel=0.1)
    shares = [np.mean([row["smoker"] == "ja" for row in one]) for one in (rows, real)]
    assert shares[0] == pytest.approx(shares[1], abs=0.07)


def test_every_client_is_charged_the_budget_and_no_more(config: Config, tmp_path: Path) -> None:
    made_up(config, BUDGET, tmp_path / "ledgers")
    spent = [Ledger.read(place).cost().epsilon(1e-5) for place in ledgers_in(tmp_path / "ledgers")]
    assert len(spent) == len(hospitals.NAMES)
    assert min(spent) > 1.99
    assert max(spent) <= 2.0
    again = made_up(config, BUDGET, tmp_path / "ledgers")[0].sample(50, 0)  # from the answers on record
    assert np.array_equal(again, made_up(config, BUDGET, tmp_path / "ledgers")[0].sample(50, 0), equal_nan=True)
    with pytest.raises(UserError, match="2"):
        made_up(
            replace(config, data=replace(config.data, columns=COLUMNS | {"age": _age(high=100)})),
            BUDGET,
            tmp_path / "ledgers",
        )


def _age(high: float) -> ColumnSettings:
    return ColumnSettings("number", unit="years", low=0, high=high)


def test_a_federation_aligns_on_them(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copula, codes = made_up(config, BUDGET, tmp_path / "ledgers")
    (tmp_path / "public.csv").write_text(written(codes, copula.sample(80, 0), config.data.layout))
    settings = replace(config.data, alignment=80, alignment_source=str(tmp_path / "public.csv"))
    data = federate(load_dataset(settings), settings, config.partition, 0)
    assert data.alignment_points == 80
    assert data.alignment_indices.size == 0
    assert np.isfinite(data.alignment()).all()


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"crp": None}, r"data.columns does not declare 'crp': without public records"),
        ({"age": ColumnSettings("number", low=0)}, r"data.columns.age: a number needs low and high"),
        ({"admitted": ColumnSettings("date")}, r"data.columns.admitted: a date needs low and high, .* \(years\)"),
        ({"sex": ColumnSettings("category")}, r"data.columns.sex: a category needs values"),
    ],
)
def test_nothing_is_learned_from_records_that_was_not_declared(config, tmp_path, changes, refused) -> None:
    columns = {name: column for name, column in (COLUMNS | changes).items() if column is not None}
    with pytest.raises(UserError, match=refused):
        made_up(replace(config, data=replace(config.data, columns=columns)), BUDGET, tmp_path / "ledgers")
    assert not (tmp_path / "ledgers").exists()


def test_images_are_made_from_chance_instead(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"for images set data.alignment_source to noise"):
        made_up(Config(), BUDGET, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [(["--out", "x.txt"], "must end in .csv"), (["--out", "none/x.csv"], "there is no folder none")],
)
def test_the_command_refuses_a_file_it_could_not_write(arguments, refused, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["data", "alignment", *arguments])
    assert stopped.value.code == 2
    assert refused in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_table_and_ledgers(config: Config, tmp_path: Path, capsys) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        f"""
[data]
source = "csv"
path = "{tmp_path / "hospitals"}"
target = "outcome"
decimal = ","
[data.columns]
patient_id = {{ kind = "id" }}
age = {{ kind = "number", low = 0, high = 110 }}
sex = {{ kind = "category", values = ["f", "m"] }}
smoker = {{ kind = "boolean", values = ["nein", "ja"] }}
crp = {{ kind = "number", low = 0, high = 60, optional = true }}
admitted = {{ kind = "date", low = 2022, high = 2024 }}
[partition]
kind = "natural"
""",
        encoding="utf-8",
    )
    with pytest.raises(SystemExit) as stopped:
        main(["data", "alignment", str(file), "--out", str(tmp_path / "public.csv"), "--points", "40"])
    captured = capsys.readouterr()
    assert not stopped.value.code, captured.err
    assert len(rows_of((tmp_path / "public.csv").read_text(encoding="utf-8"))) == 40
    assert (tmp_path / "public.ledgers").is_dir()
