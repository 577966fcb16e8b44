"""From files to a federation: who holds what, what is learned from whom, and what is refused."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.identity import identify
from fedbnn.data.tables.columns import ColumnSettings
from tests.data.tables.hospitals import DECLARED, HEADER, NAMES, records, settings, write

NATURAL = PartitionSettings(kind="natural")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "hospitals", records())
    return tmp_path / "hospitals"


def dealt(given, seed=0):
    return federate(load_dataset(given), given, NATURAL, seed)


def refusal(given):
    with pytest.raises(UserError) as caught:
        dealt(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_file_a_client(folder):
    data = dealt(settings(folder))
    assert data.client_names == NAMES
    assert data.dataset.class_names == ("gesund", "über Norm")
    assert len(data.dataset.y_train) + len(data.dataset.y_test) == 120
    assert data.coding.features[:5] == ("age", "sex = f", "sex = m", "sex: other", "smoker")
    assert data.told == ("column 'crp' is not declared; by the public records it is taken as number",)
    assert any("'sex'" in text and "not one of its values" in text for text in data.oddities)


def test_cells_come_back_whatever_the_order_of_columns(folder):
    """Each record's age is the one in its file, found by its hospital and its other values."""
    data = dealt(settings(folder))
    truth = {
        (name, np.float32(row["age"].replace(",", ".")), row["sex"] == "f", row["smoker"] == "ja", row["outcome"])
        for name, rows in records().items()
        for row in rows
    }
    at = [data.coding.features.index(name) for name in ("age", "sex = f", "smoker")]
    found = {
        (str(group), record[at[0]], bool(record[at[1]]), bool(record[at[2]]), data.dataset.class_names[label])
        for half in ("train", "test")
        for record, label, group in zip(
            *(getattr(data.dataset, f"{what}_{half}") for what in ("x", "y", "group")), strict=True
        )
    }
    assert found == truth


def test_a_list_a_folder_parquet_and_a_client_column_are_one_data_set(folder, tmp_path):
    expected = dealt(settings(folder)).dataset
    paths = tuple(str(folder / f"{name}.csv") for name in NAMES)
    assert dealt(settings(folder, path=paths)).dataset.fingerprint == expected.fingerprint

    other = tmp_path / "parquet"
    other.mkdir()
    rows = []
    for name, held in records().items():
        columns = {key: [row[key] for row in held] for key in HEADER}
        for key in ("age", "crp"):
            columns[key] = [None if cell == "NA" else float(cell.replace(",", ".")) for cell in columns[key]]
        columns["smoker"] = [cell == "ja" for cell in columns["smoker"]]
        parquet.write_table(pa.table(columns), other / f"{name}.parquet")
        rows += [{**row, "hospital": name} for row in held]
    again = settings(other, source="parquet", decimal=".")
    assert dealt(again).dataset.fingerprint == expected.fingerprint

    one = tmp_path / "all.csv"
    header = ("hospital", *HEADER)
    one.write_text("\n".join(["\t".join(header), *("\t".join(row[key] for key in header) for row in rows)]))
    whole = settings(one, client_column="hospital")
    assert dealt(whole).dataset.fingerprint == expected.fingerprint


def test_nothing_is_learned_from_private_records(folder, tmp_path):
    """Other private cells, the same public ones: the same coding, scaling and public inputs, and no word of them."""
    before = dealt(settings(folder))
    public = {tuple(row) for row in before.dataset.x_train[before.alignment_indices].tolist()}
    absurd = records()
    loaded = load_dataset(settings(folder))
    held = {loaded.train.columns["patient_id"][row] for row in before.alignment_indices}
    for rows in absurd.values():
        for row in rows:
            if row["patient_id"] not in held:
                row |= {"age": "9999", "sex": "alien", "crp": "no idea", "smoker": "", "admitted": "2222-02-02"}
    write(tmp_path / "absurd", absurd)
    after = dealt(settings(tmp_path / "absurd"))
    assert after.coding == before.coding
    assert after.told == before.told
    np.testing.assert_array_equal(after.mean, before.mean)
    np.testing.assert_array_equal(after.std, before.std)
    assert {tuple(row) for row in after.dataset.x_train[after.alignment_indices].tolist()} == public
    assert np.isfinite(after.dataset.x_train).all()
    assert after.oddities != before.oddities


def test_records_are_known_by_their_cells_and_not_by_their_encoding(folder):
    """Other declarations and another alignment set make other inputs of the same records."""
    other = {
        **DECLARED,
        "age": ColumnSettings("number", low=0, high=50),
        "sex": ColumnSettings("category", values=("x",)),
    }
    one, two = load_dataset(settings(folder)), load_dataset(settings(folder, columns=other))
    first = federate(one, settings(folder), NATURAL, 0)
    second = federate(two, settings(folder), NATURAL, 1)
    assert not np.array_equal(first.dataset.x_train, second.dataset.x_train)
    np.testing.assert_array_equal(first.identities, second.identities)
    assert len({row.tobytes() for row in first.identities}) == len(first.identities)
    np.testing.assert_array_equal(first.identity(2), first.identities[first.client_indices[2]])


def test_public_records_may_come_from_another_file(folder, tmp_path):
    write(tmp_path / "public", {"public": [row for rows in records(seed=1).values() for row in rows]})
    source = tmp_path / "public" / "public.csv"
    data = dealt(settings(folder, alignment_source=str(source), alignment=50))
    assert len(data.alignment_indices) == 0
    assert data.other_alignment.shape == (50, len(data.coding.features))
    assert sum(len(rows) for rows in data.client_indices) == len(data.dataset.y_train)
    assert "has only 120 records" in refusal(settings(folder, alignment_source=str(source), alignment=121))
    assert "it is a .csv or .parquet file" in refusal(settings(folder, alignment_source="digits"))
    (tmp_path / "less.csv").write_text("age;sex\n3;f\n")
    assert "has no column 'smoker'" in refusal(settings(folder, alignment_source=str(tmp_path / "less.csv")))


def test_a_missing_marker_can_be_a_value(tmp_path):
    (tmp_path / "a.csv").write_text("stage,y\n" + "None,0\nmild,1\nNA,1\n" * 10)
    columns = {"stage": ColumnSettings("category", values=("None", "mild"))}
    given = DataSettings(source="csv", path=str(tmp_path / "a.csv"), target="y", columns=columns, alignment=5)
    data = federate(load_dataset(given), given, PartitionSettings(kind="iid", clients=2), 0)
    x = np.concatenate([data.dataset.x_train, data.dataset.x_test])
    assert x.sum(axis=0).tolist() == [10, 10, 10]


def test_plain_numbers_are_read_as_before_and_other_signs_are_found(tmp_path):
    rows = [(str(row), f"{row / 4}", str(row % 2)) for row in range(40)]
    fingerprints = set()
    for sign in ",;\t|":
        (tmp_path / "a.csv").write_text("\n".join(sign.join(row) for row in [("a", "b", "y"), *rows]))
        fingerprints.add(load_dataset(DataSettings(source="csv", path=str(tmp_path / "a.csv"), target="y")).fingerprint)
    assert len(fingerprints) == 1
    described = DataSettings(
        source="csv", path=str(tmp_path / "a.csv"), target="y", columns={"a": ColumnSettings("number")}, alignment=10
    )
    data = federate(load_dataset(described), described, PartitionSettings(kind="iid", clients=2), 0)
    assert {data.dataset.fingerprint} == fingerprints
    plain = load_dataset(dataclasses.replace(described, columns={}, delimiter="|"))
    as_numbers = identify(plain.x_train, [plain.class_names[label] for label in plain.y_train])
    np.testing.assert_array_equal(data.identities, as_numbers)  # no ledger takes them for others
    with pytest.raises(UserError, match=r"data\.target = 'y' is not a column"):
        load_dataset(dataclasses.replace(described, columns={}, delimiter=";"))


def test_empty_cells_are_missing_whatever_else_is(tmp_path):
    (tmp_path / "a.csv").write_text("a;y\n" + "1;0\n;1\n-9;1\nNA;0\n" * 10)
    columns = {"a": ColumnSettings("number", low=0, high=9, optional=True)}
    given = DataSettings(
        source="csv", path=str(tmp_path / "a.csv"), target="y", columns=columns, missing=("-9",), alignment=5
    )
    data = federate(load_dataset(given), given, PartitionSettings(kind="iid", clients=2), 0)
    x = np.concatenate([data.dataset.x_train, data.dataset.x_test])
    assert x[:, 1].sum() == 30
    assert len(data.oddities) == 1
    assert "no number" in data.oddities[0]  # NA is a text here


# --- targets


@pytest.mark.parametrize("columns", [{}, {"a": ColumnSettings("number")}])
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            [f"{k / 7:.3f}" for k in range(40)] * 2,
            "data.target = 'y' holds 40 different numbers, such as 0.143: it is ",
        ),
        (["a", "b", "NaN", "a"] * 10, "line 4: column 'y' h"),
        (["a", "b", "None", "a"] * 10, "line 4: column 'y' h"),
    ],
)
def test_targets_that_are_no_classes(tmp_path, labels, words, columns):
    lines = [f"{row},{label}" for row, label in enumerate(labels)]
    (tmp_path / "a.csv").write_text("\n".join(["a,y", *lines]))
    given = DataSettings(source="csv", path=str(tmp_path / "a.csv"), target="y", columns=columns)
    with pytest.raises(UserError) as caught:
        load_dataset(given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_whole_numbers_or_few_others_are_classes(tmp_path):
    for labels in ([str(k) for k in range(30)], ["0.5", "1.5"]):
        (tmp_path / "a.csv").write_text("\n".join(["a,y", *(f"{k},{label}" for k, label in enumerate(labels * 4))]))
        data = load_dataset(DataSettings(source="csv", path=str(tmp_path / "a.csv"), target="y"))
        assert data.class_names == tuple(labels)


def test_a_class_of_one_record_is_told(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join(["a,y", *(f"{k},{k % 2}" for k in range(40)), "7,rare"]))
    given = DataSettings(source="csv", path=str(tmp_path / "a.csv"), target="y", alignment=5)
    data = federate(load_dataset(given), given, PartitionSettings(kind="iid", clients=2), 0)
    assert data.oddities == ("class 'rare' has one record only: it is never tested",)


# --- mistakes


def test_mistakes_in_files(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no file that ends in .csv or .tsv" in refusal(settings(tmp_path / "empty"))
    twice = (str(folder / "Graz.csv"), str(tmp_path / "Graz.csv"))
    assert "two files are called 'Graz'" in refusal(settings(folder, path=twice))
    assert "is one file a client: leave one" in refusal(settings(folder, client_column="sex"))
    assert "data.target = 'result' is not a column" in refusal(settings(folder, target="result"))
    assert "data.columns.outcome: this column is data.target" in refusal(
        settings(folder, columns={"outcome": ColumnSettings("category")})
    )
    assert "has no column 'weight', but data.columns declares it" in refusal(
        settings(folder, columns={**DECLARED, "weight": ColumnSettings("number")})
    )
    (folder / "Graz.csv").write_text("age;outcome\n3;gesund\n4;gesund\n")
    assert "Graz.csv' has no column 'sex', but data.columns declares it" in refusal(settings(folder))


def test_wrong_decimals_are_seen_in_public_records(folder):
    text = refusal(settings(folder, decimal="."))
    assert "data.columns.age.kind = 'number', but most public records hold something else" in text
    assert "data.decimal" in text


def test_undeclared_columns_need_public_records(folder):
    text = refusal(settings(folder, alignment=0))
    assert "does not declare column 'crp', and there are no public records" in text
    declared = {**DECLARED, "crp": ColumnSettings("number", low=0, high=200), "admitted": ColumnSettings("ignore")}
    data = dealt(settings(folder, alignment=0, columns=declared))
    assert data.coding.columns[1].fill == 55
    assert data.told == ()


def test_unseen_classes_are_for_plain_numbers(folder):
    assert "data.unseen_classes is not for tables" in refusal(settings(folder, unseen_classes=1))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello", b"PAR1" + b"\0" * 50 + b"PAR1"])
def test_files_that_are_not_parquet(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    assert "cannot be read" in refusal(settings(tmp_path / "a.parquet", source="parquet"))


def test_parquet_columns_that_are_no_cells(tmp_path):
    table = pa.table({"a": [[1], [2]], "outcome": ["x", "y"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    given = settings(tmp_path / "a.parquet", source="parquet", columns={})
    assert "column 'a' holds list values; declare it as data.columns.a.kind = 'ignore'" in refusal(given)
    assert "there is no such file" in refusal(dataclasses.replace(given, path=str(tmp_path / "b.parquet")))
