"""Hugging Face data sets on disk: what was saved comes back, with its names, and nothing is fetched."""

import socket
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image as Pillow
from pyarrow import parquet

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.check import check_data
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.dataset import TableDataset
from fedbnn.runs.config import EngineSettings

datasets = pytest.importorskip("datasets")

RNG = np.random.default_rng(0)
ANIMALS = ("Katze", "Hund", "Wal")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refused)


def pictures(count: int, colours: int = 3, **more: list[object]) -> tuple[object, np.ndarray, np.ndarray]:
    """A data set, its pixels and its labels."""
    shape = (count, 6, 5) if colours == 1 else (count, 6, 5, colours)
    pixels, labels = RNG.integers(0, 256, shape, dtype=np.uint8), np.arange(count) % len(ANIMALS)
    features = datasets.Features(
        {"image": datasets.Image(), "animal": datasets.ClassLabel(names=list(ANIMALS))}
        | {name: datasets.Value("string") for name in more}
    )
    images = [Pillow.fromarray(one) for one in pixels]
    held = {"image": images, "animal": labels.tolist(), **more}
    return datasets.Dataset.from_dict(held, features=features), pixels, labels


def seen(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(len(pixels), 6, 5, -1).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)


def table(count: int = 40) -> tuple[object, dict[str, list[object]]]:
    ill = np.arange(count) % 2
    held: dict[str, list[object]] = {
        "age": [None if row == 3 else float(value) for row, value in enumerate(RNG.normal(60 + 9 * ill, 5).round(1))],
        "sex": (np.arange(count) % 3 % 2).tolist(),
        "ward": [("north", "south")[row % 4 // 2] for row in range(count)],
        "outcome": ill.tolist(),
    }
    features = datasets.Features(
        {
            "age": datasets.Value("float64"),
            "sex": datasets.ClassLabel(names=["f", "m"]),
            "ward": datasets.Value("string"),
            "outcome": datasets.ClassLabel(names=["gesund", "krank"]),
        }
    )
    return datasets.Dataset.from_dict(held, features=features), held


def given(path: object, **more: object) -> DataSettings:
    return DataSettings(source="huggingface", path=str(path), **more)  # type: ignore[arg-type]


def refusal(settings: DataSettings) -> str:
    with pytest.raises(UserError) as caught:
        load_dataset(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("colours", [1, 3])
def test_images_of_both_halves_come_back(tmp_path, colours):
    (train, x_train, y_train), (test, x_test, y_test) = pictures(9, colours), pictures(6, colours)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "zoo"))
    data = load_dataset(given(tmp_path / "zoo"))
    assert data.name == "zoo"
    assert data.class_names == ANIMALS  # in the order of the ClassLabel, which is not that of the alphabet
    np.testing.assert_array_equal(data.x_train, seen(x_train))
    np.testing.assert_array_equal(data.x_test, seen(x_test))
    np.testing.assert_array_equal(data.y_train, y_train)
    np.testing.assert_array_equal(data.y_test, y_test)
    assert len(load_dataset(given(tmp_path / "zoo", test_records=4)).y_test) == 4


@pytest.mark.parametrize("kind", ["folder", "arrow", "parquet"])
def test_one_split_is_divided_and_clients_are_kept(tmp_path, kind):
    whole, pixels, labels = pictures(24, zoo=["Wien" if row < 12 else "Graz" for row in range(24)])
    path = tmp_path / "zoo"
    whole.save_to_disk(str(path))
    if kind == "arrow":
        [path] = path.glob("*.arrow")
    elif kind == "parquet":
        path = tmp_path / "zoo.parquet"
        whole.to_parquet(str(path))
    data = load_dataset(given(path, client_column="zoo"))
    assert data.class_names == ANIMALS
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    zoos = np.concatenate([data.group_train, data.group_test])
    expected = {
        (one.tobytes(), label, row < 12) for row, (one, label) in enumerate(zip(seen(pixels), labels, strict=True))
    }
    assert {(one.tobytes(), label, zoo == "Wien") for one, label, zoo in zip(x, y, zoos, strict=True)} == expected
    assert np.bincount(data.y_test).tolist() == [2, 2, 2]


def test_a_table_is_read_as_the_same_parquet_file_is(tmp_path):
    saved, held = table()
    saved.save_to_disk(str(tmp_path / "ward"))
    declared = {"age": ColumnSettings("number", low=0, high=110, optional=True)}
    settings = given(tmp_path / "ward", target="outcome", client_column="ward", columns=declared, alignment=10)
    found = load_dataset(settings)
    assert isinstance(found, TableDataset)
    assert found.class_names == ("gesund", "krank")
    named = held | {
        "sex": [("f", "m")[value] for value in held["sex"]],
        "outcome": [("gesund", "krank")[value] for value in held["outcome"]],
    }
    plain = datasets.Dataset.from_dict(named)
    plain.to_parquet(str(tmp_path / "ward.parquet"))
    other = DataSettings(
        source="parquet", path=str(tmp_path / "ward.parquet"), target="outcome", client_column="ward",
        columns=declared, alignment=10,
    )  # fmt: skip
    ours, theirs = (federate(load_dataset(one), one, PartitionSettings("natural"), 0) for one in (settings, other))
    assert ours.dataset.fingerprint == theirs.dataset.fingerprint
    assert ours.client_names == ("north", "south")
    checked = check_data(settings, PartitionSettings("natural"), 0)
    assert {column.name for column in checked.columns} == {"age", "sex"}


def test_a_run_and_its_predictions(tmp_path):
    pixels, labels = RNG.integers(0, 256, (120, 8, 8), dtype=np.uint8), np.arange(120) % 2
    pixels[labels == 1, :4] //= 4
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["hell", "dunkel"])})
    images = [Pillow.fromarray(one) for one in pixels]
    whole = datasets.Dataset.from_dict({"image": images, "label": labels.tolist()}, features=features)
    whole.save_to_disk(str(tmp_path / "day"))
    config = fedbnn.Config(
        method="local",
        rounds=1,
        data=given(tmp_path / "day", alignment=20),
        partition=PartitionSettings("iid", clients=2),
        models=(fedbnn.ModelSettings("mlp"),),
        training=fedbnn.TrainingSettings(warmup_epochs=1, local_epochs=1),
        engine=EngineSettings(debug=True),
    )
    result = fedbnn.run(config, tmp_path / "run")
    assert result["class_names"] == ["hell", "dunkel"]
    answer = fedbnn.load(tmp_path / "run").predict(0, pixels[:4, None].astype(np.float32) / np.float32(255))
    assert set(answer.labels) <= {"hell", "dunkel"}


def test_what_cannot_be_read_is_one_line(tmp_path):
    whole, *_ = pictures(6)
    whole.save_to_disk(str(tmp_path / "zoo"))
    assert "there is no such file or folder" in refusal(given(tmp_path / "none"))
    assert "data.path is empty" in refusal(DataSettings(source="huggingface"))
    assert "is not a column of" in refusal(given(tmp_path / "zoo", target="anmal"))
    assert "did you mean 'animal'" in refusal(given(tmp_path / "zoo", target="anmal"))
    assert "data.columns is for tables" in refusal(given(tmp_path / "zoo", columns={"image": ColumnSettings("id")}))
    (tmp_path / "notes.txt").write_text("none")
    assert "a file that ends in .arrow or .parquet" in refusal(given(tmp_path / "notes.txt"))
    (tmp_path / "empty").mkdir()
    assert "cannot be read" in refusal(given(tmp_path / "empty"))
    [data] = (tmp_path / "zoo").glob("*.arrow")
    data.write_bytes(data.read_bytes()[:-700])
    assert "cannot be read" in refusal(given(tmp_path / "zoo"))


def test_a_class_that_is_missing_is_asked_about(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "animal": datasets.ClassLabel(names=list(ANIMALS))})
    image = Pillow.fromarray(np.zeros((4, 4), np.uint8))
    held = {"image": [image] * 4, "animal": [0, 1, -1, 0]}
    datasets.Dataset.from_dict(held, features=features).save_to_disk(str(tmp_path / "zoo"))
    assert "'animal' holds -1 in record 2; every record needs a class" in refusal(given(tmp_path / "zoo"))


def test_an_address_in_the_place_of_an_image_is_not_followed(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "animal": datasets.ClassLabel(names=list(ANIMALS))})
    held = {"image": [{"bytes": None, "path": "https://example.org/cat.png"}] * 4, "animal": [0, 1, 0, 1]}
    parquet.write_table(datasets.Dataset.from_dict(held, features=features).data.table, tmp_path / "zoo.parquet")
    assert "is no image that is in the file itself" in refusal(given(tmp_path / "zoo.parquet"))


def test_changed_bytes_are_read_or_refused(tmp_path):
    """Of the data, of the state and of the description: anything else than a UserError fails."""
    whole, *_ = pictures(6)
    whole.save_to_disk(str(tmp_path / "zoo"))
    rng = np.random.default_rng(3)
    for path in sorted((tmp_path / "zoo").iterdir()):
        honest = path.read_bytes()
        for _ in range(25):
            changed = bytearray(honest)
            for at in rng.integers(0, len(honest), 3):
                changed[at] = rng.integers(0, 256)
            path.write_bytes(changed)
            with suppress(UserError):  # which is one line by its nature
                load_dataset(given(tmp_path / "zoo"))
        path.write_bytes(honest)
    assert load_dataset(given(tmp_path / "zoo")).class_names == ANIMALS
