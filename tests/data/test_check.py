"""What a check counts is what is there."""

import dataclasses

import pytest

from fedbnn.data import DataSettings, PartitionSettings
from fedbnn.data.check import check_data
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.identifying import distinct, named
from tests.data.tables.hospitals import DECLARED, NAMES, records, settings, write

NATURAL = PartitionSettings(kind="natural")


def test_counts_are_those_of_the_files(tmp_path):
    """With public records from elsewhere and hardly a test record, a client trains on all but a few of its own."""
    rows = records()
    rows["Köln"] += [dict(rows["Köln"][0], patient_id=f"copy {k}") for k in range(3)]
    write(tmp_path / "hospitals", rows)
    write(tmp_path / "public", {"public": [*records(seed=1)["Graz"], *rows["Graz"]]})
    given = settings(tmp_path / "hospitals", alignment_source=str(tmp_path / "public" / "public.csv"), alignment=60)
    found = check_data(dataclasses.replace(given, test_fraction=0.01), NATURAL, 0)
    assert [one.name for one in found.clients] == list(NAMES)
    for one in found.clients:
        held = rows[one.name]
        assert one.records + one.tested == len(held)
        for name, count in one.classes.items():
            assert 0 <= sum(row["outcome"] == name for row in held) - count <= one.tested
        assert 0 <= sum(row["crp"] == "NA" for row in held) - one.missing["crp"] <= one.tested
        assert one.missing["age"] == 0
        assert (one.public == one.records) if one.name == "Graz" else (one.public == 0)
    assert [one.duplicates for one in found.clients if one.name != "Köln"] == [0, 0, 0]
    assert found.clients[2].duplicates in (2, 3)
    assert any("'Graz'" in note and "public alignment set too" in note for note in found.notes)
    assert any("'Köln'" in note and "same values as an earlier one" in note for note in found.notes)


def test_columns_that_may_name_people(tmp_path):
    write(tmp_path / "hospitals", records())
    declared = {**DECLARED, "patient_id": ColumnSettings("category", values=("a",))}
    found = check_data(settings(tmp_path / "hospitals", columns=declared), NATURAL, 0)
    looks = {column.name: column for column in found.columns}
    assert looks["patient_id"].looks == "its name looks as if it named people and no two records share a value"
    assert [name for name, column in looks.items() if column.looks] == ["patient_id"]
    assert any("'patient_id'" in note and "declare kind = 'id' or 'ignore'" in note for note in found.notes)
    right = check_data(settings(tmp_path / "hospitals"), NATURAL, 0)
    assert not any("patient_id" in note for note in right.notes)


def test_a_plain_table_and_images(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join(["nr,b,y", *(f"{k},{k / 8},{k % 2}" for k in range(40))]))
    given = DataSettings(source="csv", path=str(tmp_path / "a.csv"), target="y", alignment=8)
    found = check_data(given, PartitionSettings(kind="iid", clients=3), 0)
    assert {column.name: column.kind for column in found.columns} == {"nr": "number", "b": "number"}
    assert [column.name for column in found.columns if column.looks] == ["nr"]  # whole numbers that never repeat
    assert all(one.tested is None for one in found.clients)

    digits = check_data(DataSettings(alignment=40), PartitionSettings(clients=3), 0)
    assert digits.columns == ()
    assert digits.features == 64
    assert sum(digits.clients[0].classes.values()) == digits.clients[0].records == 40


@pytest.mark.parametrize(
    "name", ["id", "patient_id", "PatientID", "Name", "E-Mail", "phone nr.", "date of birth", "Straße", "SSN"]
)
def test_names_that_name_people(name):
    assert named(name)


@pytest.mark.parametrize("name", ["age", "paid", "tidal_volume", "hotel", "idle", "sodium", "names_count2x"])
def test_names_that_do_not(name):
    assert not named(name)


def test_how_many_values_differ():
    assert distinct(["a", "b", "c", "d", None, "d"]) == 4 / 5
    assert distinct(["a", "b", "c"]) == 0  # too few to tell
