"""Real-valued targets, from files and functions to clients."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedbnn import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.check import check_data
from fedbnn.data.dataset import Dataset
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.models.regression import Scale

SCALE = {"target_mean": 10.0, "target_sd": 5.0}
IID = PartitionSettings(kind="iid", clients=2)


def own_arrays():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 2)), rng.normal(size=40)


def own_dataset():
    x, y = (one.astype(np.float32) for one in own_arrays())
    return Dataset("mine", x[:30], y[:30], x[30:], y[30:], (), scale=Scale(0.0, 1.0))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{i % 7},{i * 0.5:.2f},{'ab'[i % 2]},{3 + i / 4}" for i in range(40)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["age,dose,hospital,outcome", *rows]) + "\n")
    return path


def settings(path: Path, **changes) -> DataSettings:
    given = {"source": "csv", "path": str(path), "target": "outcome", "client_column": "hospital", "task": "regression"}
    return DataSettings(**{**given, **SCALE, "alignment": 6, **changes})


def test_a_column_of_numbers_is_the_target(table):
    data = load_dataset(settings(table))
    assert data.classes == 0
    assert data.scale == Scale(10, 5)
    assert data.y_train.dtype == np.float32
    assert sorted([*data.y_train, *data.y_test]) == [3 + i / 4 for i in range(40)]
    assert abs(np.mean(data.group_test == "a") - 0.5) <= 0.1  # the same share of every client is held out


def test_declared_columns_and_plain_numbers_give_the_same_targets(table):
    plain = federate(load_dataset(settings(table)), settings(table), PartitionSettings(kind="natural"), 0)
    declared = settings(table, columns={"age": ColumnSettings(kind="number"), "dose": ColumnSettings(kind="number")})
    coded = federate(load_dataset(declared), declared, PartitionSettings(kind="natural"), 0)
    assert np.array_equal(plain.dataset.y_train, coded.dataset.y_train)
    assert plain.client_names == ("a", "b")
    assert np.array_equal(plain.identity(0), coded.identity(0))
    assert plain.own_mask(0, "test").sum() == (plain.dataset.group_test == "a").sum()


def test_a_decimal_comma_is_read(tmp_path):
    path = tmp_path / "comma.csv"
    path.write_text("age;outcome\n" + "\n".join(f"{i};{i},5" for i in range(12)) + "\n")
    given = settings(path, client_column="", decimal=",", alignment=2)
    assert sorted(load_dataset(given).y_train.tolist() + load_dataset(given).y_test.tolist()) == [
        i + 0.5 for i in range(12)
    ]


def test_what_clients_hold_is_told_without_classes(table):
    given = settings(table, client_column="", columns={"hospital": ColumnSettings(kind="category")})
    data = federate(load_dataset(given), given, IID, 0)
    told = data.manifest()
    assert told["target"] == {"mean": 10.0, "sd": 5.0}
    assert "classes" not in told
    assert "class_counts" not in told["clients"][0]
    json.dumps(told)
    assert data.own_mask(0, "test").all()
    assert data.own_classes(0).size == 0
    check = check_data(given, IID, 0)
    assert check.clients[0].classes == {}
    assert sum(one.records for one in check.clients) == told["train"] - 6


def test_the_scale_is_declared_and_never_fitted(table):
    """Other records, the same scale: nothing about private targets is in it."""
    shifted = table.with_name("shifted.csv")
    lines = table.read_text().splitlines()
    shifted.write_text(
        "\n".join([lines[0], *(f"{line.rpartition(',')[0]},{1000 + i}" for i, line in enumerate(lines[1:]))])
    )
    assert load_dataset(settings(table)).scale == load_dataset(settings(shifted)).scale


def test_functions_of_ones_own(monkeypatch):
    name = f"{__name__}:own_arrays"
    data = load_dataset(DataSettings(source=name, task="regression", **SCALE))
    assert len(data.y_test) == 10
    assert set(data.y_train.tolist()) | set(data.y_test.tolist()) == set(own_arrays()[1].astype(np.float32).tolist())
    own = load_dataset(DataSettings(source=f"{__name__}:own_dataset", task="regression"))
    assert own.scale == Scale(0, 1)
    with pytest.raises(UserError, match=r"data.task = 'classification', but .* returned a data set for regression"):
        load_dataset(DataSettings(source=f"{__name__}:own_dataset"))


def test_archives(tmp_path):
    x, y = own_arrays()
    np.savez(tmp_path / "a.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    given = DataSettings(source="npz", path=str(tmp_path / "a.npz"), task="regression", **SCALE)
    assert load_dataset(given).y_test.tolist() == y[30:].astype(np.float32).tolist()
    np.savez(tmp_path / "b.npz", x_train=x[:30], y_train=y[:30].astype(str), x_test=x[30:], y_test=y[30:].astype(str))
    with pytest.raises(UserError, match=r"y_train is <U.* one number a record"):
        load_dataset(DataSettings(source="npz", path=str(tmp_path / "b.npz"), task="regression", **SCALE))
    y[3] = np.nan
    np.savez(tmp_path / "c.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    with pytest.raises(UserError, match="y_train holds NaN or infinity in 1 record"):
        load_dataset(DataSettings(source="npz", path=str(tmp_path / "c.npz"), task="regression", **SCALE))


def test_the_diabetes_table_has_its_published_scale():
    data = load_dataset(DataSettings(source="diabetes", task="regression"))
    assert (len(data.y_train), len(data.y_test), data.input_shape) == (332, 110, (10,))
    assert data.scale == Scale(150, 80)
    declared = DataSettings(source="diabetes", task="regression", target_mean=100.0, target_sd=50.0)
    assert load_dataset(declared).scale == Scale(100, 50)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"target_sd": 0.0}, "needs data.target_mean and data.target_sd"),
        ({"source": "digits"}, "data.source = 'digits' has classes"),
        ({"unseen_classes": 1}, "data.unseen_classes is for classification"),
        ({"task": "classification"}, "data.target_mean is for data.task = 'regression'"),
        ({"target": "hospital", "client_column": ""}, "line 2: column 'hospital' holds 'a'; .* needs a finite number"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(table, changes, told):
    with pytest.raises(UserError, match=told):
        load_dataset(settings(table, **changes))


@pytest.mark.parametrize("kind", ["classes", "dirichlet"])
def test_partitions_by_class_refuse(table, kind):
    given = settings(table)
    with pytest.raises(UserError, match=f'partition.kind = "{kind}" deals by classes'):
        federate(load_dataset(given), given, PartitionSettings(kind=kind, clients=2), 0)


def test_a_continuous_target_of_classification_points_to_regression(table):
    with pytest.raises(UserError, match=r"set data.task = 'regression'"):
        load_dataset(settings(table, task="classification", target_mean=0.0, target_sd=0.0))


def test_diabetes_is_no_classification():
    with pytest.raises(UserError, match=r"set data.task = 'regression'"):
        load_dataset(DataSettings(source="diabetes"))


def test_a_data_set_has_classes_or_a_scale():
    x, y = np.zeros((2, 1), np.float32), np.zeros(2, np.float32)
    with pytest.raises(UserError, match="class names and the scale"):
        Dataset("odd", x, y, x, y, ("a", "b"), scale=Scale(0, 1))
