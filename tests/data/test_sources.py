import csv
import zipfile

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, load_dataset


def error_of(settings):
    with pytest.raises(UserError) as caught:
        load_dataset(settings)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    "wrong",
    [
        {"alignment": -1},
        {"validation": -1},
        {"test_fraction": 0.0},
        {"test_fraction": 1.0},
        {"test_fraction": float("nan")},
        {"alignment": "400"},
        {"unknown": 1},
    ],
)
def test_settings_are_strict(wrong):
    with pytest.raises(UserError):
        DataSettings(**wrong)


def test_unknown_source_names_the_nearest():
    text = error_of(DataSettings(source="digit"))
    assert "data.source = 'digit'" in text
    assert "did you mean 'digits'?" in text
    assert "'npz'" in text
    assert "did you mean" not in error_of(DataSettings(source="mnist-from-the-web"))


@pytest.mark.parametrize("source", ["npz", "csv"])
def test_files_that_cannot_be_read(source, tmp_path):
    assert "data.path is empty" in error_of(DataSettings(source=source))
    missing = str(tmp_path / "none.dat")
    assert "there is no such file" in error_of(DataSettings(source=source, path=missing, target="t"))
    assert "cannot be read" in error_of(DataSettings(source=source, path=str(tmp_path), target="t"))


# --- digits


def test_digits_are_all_there_once():
    data = load_dataset(DataSettings())
    assert data.x_train.shape == (1347, 1, 8, 8)
    assert data.x_test.shape == (450, 1, 8, 8)
    assert data.class_names == tuple("0123456789")
    images, labels = load_digits(return_X_y=True)
    found = {
        (x.tobytes(), int(y))
        for x, y in zip(
            np.concatenate([data.x_train, data.x_test]).reshape(-1, 64),
            np.concatenate([data.y_train, data.y_test]),
            strict=True,
        )
    }
    expected = {(x.tobytes(), int(y)) for x, y in zip((images / 16).astype(np.float32), labels, strict=True)}
    assert found == expected


def test_digits_split_is_stratified_and_fixed():
    np.random.seed(1)  # noqa: NPY002
    first = load_dataset(DataSettings())
    np.random.seed(2)  # noqa: NPY002
    assert load_dataset(DataSettings()).fingerprint == first.fingerprint
    everything = np.bincount(first.y_train) + np.bincount(first.y_test)
    assert np.abs(np.bincount(first.y_test) - everything * 450 / 1797).max() < 1


# --- npz


def save(path, **arrays):
    base = {
        "x_train": np.arange(6 * 2, dtype=np.float64).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.ones((3, 2)),
        "y_test": np.array([0, 1, 2]),
    }
    merged = {key: value for key, value in (base | arrays).items() if value is not None}
    np.savez(path, **merged)
    return DataSettings(source="npz", path=str(path))


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "mine.npz"


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize(
    ("stored", "axes"),
    [
        ("N H W", None),
        ("N H W C", (0, 2, 3, 1)),
        ("N C H W", (0, 1, 2, 3)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_npz_images_come_back_from_every_layout(archive, dtype, stored, axes, channels):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 256, size=(9, 1 if axes is None else channels, 7, 5)).astype(dtype)
    arranged = truth[:, 0] if axes is None else truth.transpose(axes)
    data = load_dataset(save(archive, x_train=arranged[:6], x_test=arranged[6:]))
    expected = truth.astype(np.float32) / np.float32(255 if dtype == np.uint8 else 1)
    np.testing.assert_array_equal(data.x_train, expected[:6])
    np.testing.assert_array_equal(data.x_test, expected[6:])
    assert data.x_train.dtype == np.float32
    assert data.name == "mine"


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.bool_])
def test_npz_tables_are_kept_as_they_are(archive, dtype):
    x = np.arange(18).reshape(9, 2).astype(dtype)
    data = load_dataset(save(archive, x_train=x[:6], x_test=x[6:]))
    np.testing.assert_array_equal(data.x_train, x[:6].astype(np.float32))
    assert data.input_shape == (2,)


@pytest.mark.parametrize(
    ("train", "test", "names"),
    [
        ([7, -3, 10, 7, 10, 7], [10, 7, 99], ("-3", "7", "10", "99")),
        (["dog", "cat", "dog", "cat", "cat", "cat"], ["eel", "cat", "dog"], ("cat", "dog", "eel")),
        ([True, False, True, False, True, True], [True, True, False], ("False", "True")),
    ],
)
def test_npz_labels_are_numbered_in_sorted_order(archive, train, test, names):
    data = load_dataset(save(archive, y_train=np.array(train), y_test=np.array(test)))
    assert data.class_names == names
    assert [names[label] for label in data.y_train] == [str(label) for label in train]
    assert [names[label] for label in data.y_test] == [str(label) for label in test]


def test_npz_labels_of_mixed_signedness_stay_exact(archive):
    big = 2**53 + 1
    y_train = np.array([0, 1, big, 0, 1, big], dtype=np.uint64)
    data = load_dataset(save(archive, y_train=y_train, y_test=np.array([0, -1, big])))
    assert data.class_names == ("-1", "0", "1", str(big))


def test_npz_labels_may_be_a_column(archive):
    data = load_dataset(save(archive, y_train=np.array([[0], [1], [2], [0], [1], [2]])))
    assert data.y_train.tolist() == [0, 1, 2, 0, 1, 2]


def test_npz_may_name_clients(archive):
    settings = save(archive, group_train=np.array([1, 1, 1, 2, 2, 2]), group_test=np.array([1, 2, 3]))
    data = load_dataset(settings)
    assert data.group_train.tolist() == ["1", "1", "1", "2", "2", "2"]
    assert data.group_test.tolist() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("arrays", "facts"),
    [
        ({"x_test": None}, ["no array 'x_test'", "'x_train'"]),
        ({"x_train": np.zeros((6, 7, 5, 9))}, ["x_train", "(6, 7, 5, 9)", "C = 1, 3 or 4"]),
        ({"x_train": np.zeros(6)}, ["x_train", "(6,)"]),
        ({"x_train": np.zeros((6, 2), dtype=complex)}, ["x_train", "complex128"]),
        ({"x_train": np.full((6, 2), "a")}, ["x_train", "numbers are needed"]),
        ({"x_train": np.zeros((6, 2), dtype=np.uint8)}, ["x_train is uint8", "x_test float64"]),
        ({"x_train": np.full((6, 2), 1e300)}, ["x_train holds NaN or infinity in 6 record(s)"]),
        ({"x_train": np.full((6, 2), np.nan)}, ["x_train holds NaN or infinity in 6 record(s)"]),
        ({"y_train": np.zeros(6)}, ["y_train is float64"]),
        ({"y_train": np.eye(6, 3, dtype=np.int64)}, ["y_train", "(6, 3)", "one integer or string"]),
        ({"y_train": np.array(list("abcabc"))}, ["both must be integers or both strings"]),
        ({"y_train": np.array([0, 1])}, ["x_train has 6 records but y_train has 2"]),
        ({"y_train": np.zeros(6, dtype=int), "y_test": np.zeros(3, dtype=int)}, ["1 class(es)"]),
        ({"group_train": np.array(list("aabbcc"))}, ["group_train and group_test go together"]),
    ],
)
def test_npz_mistakes(archive, arrays, facts):
    text = error_of(save(archive, **arrays))
    for fact in facts:
        assert fact in text


@pytest.mark.parametrize("key", ["x_train", "y_test"])
def test_npz_never_unpickles(archive, key):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    text = error_of(save(archive, **{key: np.array([Bomb(), Bomb()], dtype=object)}))
    assert key in text
    assert "never Python objects" in text


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 cut short", b"\x80\x04N.", b"\x93NUMPY\x01\x00"])
def test_files_that_are_not_npz(archive, content):
    archive.write_bytes(content)
    assert "is not an npz archive" in error_of(DataSettings(source="npz", path=str(archive)))


def test_a_single_array_is_not_npz(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "is not an npz archive" in error_of(DataSettings(source="npz", path=str(tmp_path / "one.npy")))


def test_npz_members_that_are_damaged(archive):
    settings = save(archive)
    content = bytearray(archive.read_bytes())
    content[200] ^= 255
    archive.write_bytes(content)
    assert "x_train cannot be read" in error_of(settings)


def test_npz_members_that_are_not_arrays(archive):
    settings = save(archive, x_train=None)
    with zipfile.ZipFile(archive, "a") as stream:
        stream.writestr("x_train.npy", b"text")
    assert "x_train is not a NumPy array" in error_of(settings)


# --- csv


@pytest.fixture
def table(tmp_path):
    def write(header, rows, **settings):
        path = tmp_path / "table.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([header, *rows])
        return DataSettings(source="csv", path=str(path), **({"target": "kind"} | settings))

    return write


def rows_of(records):
    """Feature a is the row number, b its half; classes and sites alternate."""
    return [[row, f"site {row % 4}", row / 2, ["oak", "elm", "ash"][row % 3]] for row in range(records)]


HEADER = ["a", "site", "b", "kind"]


def test_csv_comes_back(table):
    data = load_dataset(table(HEADER, rows_of(120), client_column="site"))
    assert data.name == "table"
    assert data.class_names == ("ash", "elm", "oak")
    assert (len(data.x_train), len(data.x_test)) == (90, 30)
    x = np.concatenate([data.x_train, data.x_test])
    y = np.concatenate([data.y_train, data.y_test])
    groups = np.concatenate([data.group_train, data.group_test])
    order = np.argsort(x[:, 0])
    np.testing.assert_array_equal(x[order, 0], np.arange(120))
    np.testing.assert_array_equal(x[order, 1], np.arange(120) / 2)
    assert [data.class_names[label] for label in y[order]] == [["oak", "elm", "ash"][row % 3] for row in range(120)]
    assert groups[order].tolist() == [f"site {row % 4}" for row in range(120)]


def test_csv_split_is_fixed_and_stratified_by_class_and_client(table):
    settings = table(HEADER, rows_of(240), client_column="site", test_fraction=0.2)
    data = load_dataset(settings)
    assert load_dataset(settings).fingerprint == data.fingerprint
    for label in range(3):
        for site in range(4):
            held = int(((data.y_test == label) & (data.group_test == f"site {site}")).sum())
            assert held == 4


def test_csv_without_clients(table):
    rows = [[row, row % 2] for row in range(20)]
    data = load_dataset(table(["a", "kind"], rows, test_fraction=0.5))
    assert data.group_train is None
    assert np.bincount(data.y_test).tolist() == [5, 5]


def test_csv_number_classes_sort_by_value(table):
    rows = [[row, ["10", "2", "1.0", "1", "-0.5"][row % 5]] for row in range(20)]
    assert load_dataset(table(["a", "kind"], rows)).class_names == ("-0.5", "1", "2", "10")


def test_csv_with_byte_order_mark_blank_lines_and_spaces(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_bytes("\ufeffa , kind\r\n1,x\r\n\r\n 2 , x\r\n3,é\r\n4,é\r\n".encode())
    data = load_dataset(DataSettings(source="csv", path=str(path), target="kind", test_fraction=0.5))
    assert data.class_names == ("x", "é")
    assert sorted(np.concatenate([data.x_train, data.x_test])[:, 0].tolist()) == [1, 2, 3, 4]


def test_csv_wide_tables_are_listed_in_short(table):
    text = error_of(table([f"f{i}" for i in range(100)], [range(100)] * 2))
    assert "and 80 more" in text


@pytest.mark.parametrize(
    ("header", "rows", "settings", "facts"),
    [
        (["a", "kind"], [[1, "x"], ["abc", "y"]], {}, ["line 3", "column 'a' holds 'abc'"]),
        (["a", "kind"], [[1, "x"], ["", "y"]], {}, ["line 3", "column 'a' is empty"]),
        (["a", "kind"], [["nan", "x"]], {}, ["line 2", "column 'a' holds 'nan'", "finite"]),
        (["a", "kind"], [["1e39", "x"]], {}, ["column 'a' holds '1e39'"]),
        (["a", "kind"], [[1, "x"], [2, " "]], {}, ["line 3", "column 'kind' is empty"]),
        (["a", "kind"], [[1, "x"], [2]], {}, ["line 3: 1 cell(s), but the header has 2"]),
        (["a", "kind", "a"], [[1, "x", 2]], {}, ["more than one column 'a'", "'kind'"]),
        (["", "a", "kind"], [[0, 1, "x"]], {}, ["column 1 has no name"]),
        (["a", "kinds"], [[1, "x"]], {}, ["data.target = 'kind'", "'a', 'kinds'", "did you mean 'kinds'?"]),
        (["a", "kind"], [[1, "x"]], {"target": ""}, ["data.target = ''", "'a', 'kind'"]),
        (
            ["a", "kind", "site"],
            [[1, "x", "p"]],
            {"client_column": "sight"},
            ["data.client_column = 'sight'", "did you mean 'site'?"],
        ),
        (["a", "kind"], [[1, "x"]], {"client_column": "kind"}, ["both 'kind'"]),
        (["kind"], [["x"]], {}, ["no feature column"]),
        (["a", "kind"], [], {}, ["has no records"]),
        (["a", "kind"], [[1, "x"], [2, "x"]], {}, ["1 class(es)"]),
        (["a", "kind"], [[1, 0.1], [2, 0.2]], {}, ["no two records share a value of 'kind'"]),
        (
            ["a", "kind", "id"],
            [[1, 0, "p"], [2, 0, "q"], [3, 1, "r"]],
            {"client_column": "id"},
            ["no two records share a value of 'kind' and 'id'"],
        ),
    ],
)
def test_csv_mistakes(table, header, rows, settings, facts):
    text = error_of(table(header, rows, **settings))
    for fact in facts:
        assert fact in text


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a,kind\n"])
def test_files_that_are_not_csv(tmp_path, content):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    text = error_of(DataSettings(source="csv", path=str(path), target="kind"))
    assert "is not a CSV file" in text or "has no records" in text
