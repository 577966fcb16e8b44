"""Folders of images, and functions of the user's own."""

import numpy as np
import pytest
from PIL import Image

from fedbnn import Dataset
from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, load_dataset

RNG = np.random.default_rng(0)


def refusal(settings):
    with pytest.raises(UserError) as caught:
        load_dataset(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pictures(folder, colours=3, each=8, size=(6, 5)):
    """PNG files of random pixels, and the pixels by class."""
    truth = {}
    for name in ("Katze", "hund"):
        (folder / name).mkdir(parents=True)
        shape = (each, *size) if colours == 1 else (each, *size, colours)
        truth[name] = RNG.integers(0, 256, size=shape, dtype=np.uint8)
        for number, pixels in enumerate(truth[name]):
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return truth


@pytest.mark.parametrize("colours", [1, 3])
def test_images_come_back(tmp_path, colours):
    truth = pictures(tmp_path / "zoo", colours)
    (tmp_path / "zoo" / "Katze" / "notes.txt").write_text("no image")
    data = load_dataset(DataSettings(source="folder", path=str(tmp_path / "zoo")))
    assert data.name == "zoo"
    assert data.class_names == ("Katze", "hund")
    assert data.input_shape == (colours, 6, 5)
    assert np.bincount(data.y_test).tolist() == [2, 2]
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    for label, name in enumerate(data.class_names):
        expected = truth[name].reshape(8, 6, 5, colours).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        assert {one.tobytes() for one in x[y == label]} == {np.ascontiguousarray(one).tobytes() for one in expected}


def test_folders_train_and_test_are_the_halves(tmp_path):
    pictures(tmp_path / "train", each=5)
    pictures(tmp_path / "test", each=2)
    data = load_dataset(DataSettings(source="folder", path=str(tmp_path), test_records=3))
    assert (len(data.y_train), len(data.y_test)) == (10, 3)


def test_folders_that_cannot_be_read(tmp_path):
    def given(path=tmp_path):
        return DataSettings(source="folder", path=str(path))

    assert "there is no such folder" in refusal(given(tmp_path / "none"))
    assert "data.path is empty" in refusal(DataSettings(source="folder"))
    assert "has no folder with images" in refusal(given())
    pictures(tmp_path)
    Image.fromarray(np.zeros((6, 9, 3), np.uint8)).save(tmp_path / "hund" / "wide.png")
    assert "wide.png is 9 x 6 pixels, 0.png 5 x 6: all must have one size" in refusal(given())
    (tmp_path / "hund" / "wide.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    assert "wide.png cannot be read" in refusal(given())
    Image.fromarray(np.zeros((6, 5), np.uint16)).save(tmp_path / "hund" / "wide.png")
    assert "wide.png is of mode I;16" in refusal(given())


MODULE = """
import numpy as np
from fedbnn import Dataset

x = np.arange(80, dtype=np.float64).reshape(40, 2)
y = np.array(["a", "b"] * 20)
z, k = x.astype("f4"), np.arange(40) % 2
whole = lambda: Dataset("mine", z[:20], k[:20], z[20:], k[20:], ("n", "y"))
arrays = lambda: (x, y)
halves = lambda: (x[:30], y[:30], x[30:], y[30:])
nothing = lambda: None
uneven = lambda: (x, y[:3])
number = lambda: (3, 4)
broken = lambda: 1 / 0
value = 7
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_source_sample.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, **more: DataSettings(source=f"own_source_sample:{name}", **more)


def test_a_function_of_ones_own(module):
    whole = load_dataset(module("whole"))
    assert isinstance(whole, Dataset)
    assert whole.class_names == ("n", "y")
    data = load_dataset(module("arrays", test_fraction=0.5))
    assert data.class_names == ("a", "b")
    assert np.bincount(data.y_test).tolist() == [10, 10]
    assert sorted(np.concatenate([data.x_train, data.x_test])[:, 0].tolist()) == list(range(0, 80, 2))
    for half in ("train", "test"):  # labels stay with their records
        x, y = getattr(data, f"x_{half}"), getattr(data, f"y_{half}")
        np.testing.assert_array_equal(x[:, 0] / 2 % 2, y)
    assert len(load_dataset(module("halves", test_records=4)).y_test) == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "returned NoneType; a fedbnn.Dataset, (x, y)"),
        ("uneven", "records go first"),
        ("number", "records go first"),
        ("broken", "failed: ZeroDivisionError: division by zero"),
        ("value", "is no function, but int"),
        ("none", "cannot be imported"),
    ],
)
def test_functions_that_return_no_data(module, name, words):
    assert words in refusal(module(name))
