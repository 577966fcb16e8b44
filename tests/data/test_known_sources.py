"""Data sets known by name, written in each original format and compared with the arrays they were made of."""

import functools
import math
import os
import pickle
import struct

import numpy as np
import pytest

from fedbnn.base.errors import UserError
from fedbnn.data import SOURCES, DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.heart_source import HOSPITALS
from tests.data import original_files as original

TRAIN, TEST = original.grey(40), original.grey(20, seed=1)
COLOUR_TRAIN, COLOUR_TEST = original.colour(55), original.colour(20, seed=1)
HUNDRED_TRAIN, HUNDRED_TEST = original.colour(100, 100), original.colour(100, 100, seed=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """$FEDBNN_DATA, with the cache elsewhere."""
    path = tmp_path / "data"
    path.mkdir()
    monkeypatch.setenv("FEDBNN_DATA", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def load(name):
    return load_dataset(DataSettings(source=name))


def error_of(name):
    with pytest.raises(UserError) as caught:
        load(name)
    text = str(caught.value)
    assert "\n" not in text
    return text


def assert_holds(data, train, test):
    for x, y, (images, labels) in ((data.x_train, data.y_train, train), (data.x_test, data.y_test, test)):
        expected = (images if images.ndim == 4 else images[:, None]).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(x, expected)
        np.testing.assert_array_equal(y, labels)


# --- npz


def test_npz_by_name(folder):
    np.savez(folder / "mnist.npz", x_train=TRAIN[0], y_train=TRAIN[1], x_test=TEST[0], y_test=TEST[1])
    data = load("mnist")
    assert_holds(data, TRAIN, TEST)
    assert (data.name, data.class_names) == ("mnist", tuple("0123456789"))


def test_npz_in_the_cache(folder, tmp_path):
    cache = tmp_path / "cache" / "fedbnn"
    cache.mkdir(parents=True)
    hwc = (0, 2, 3, 1)
    arrays = {"y_train": COLOUR_TRAIN[1], "y_test": COLOUR_TEST[1]}
    np.savez(
        cache / "cifar10.npz", x_train=COLOUR_TRAIN[0].transpose(hwc), x_test=COLOUR_TEST[0].transpose(hwc), **arrays
    )
    data = load("cifar10")
    assert_holds(data, COLOUR_TRAIN, COLOUR_TEST)
    assert data.class_names == tuple(name.decode() for name in original.CIFAR10_NAMES)


def test_the_given_folder_goes_before_the_cache(folder, tmp_path):
    original.write_idx(folder / "mnist", {"train": TRAIN, "test": TEST})
    original.write_idx(tmp_path / "cache" / "fedbnn" / "mnist", {"train": TEST, "test": TRAIN})
    assert_holds(load("mnist"), TRAIN, TEST)


def test_a_whole_data_set_goes_before_a_test_half(folder, tmp_path):
    np.savez(folder / "fashion_mnist_test.npz", x_test=TRAIN[0], y_test=TRAIN[1])
    original.write_idx(tmp_path / "cache" / "fedbnn" / "fashion_mnist", {"train": TRAIN, "test": TEST})
    assert_holds(load("fashion_mnist"), TRAIN, TEST)


def test_npz_names_its_classes(folder):
    names = np.array([name.decode() for name in original.CIFAR100_NAMES])
    (x, y), (x_test, y_test) = HUNDRED_TRAIN, HUNDRED_TEST
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    np.savez(folder / "cifar100.npz", **arrays, y_train_coarse=y // 5, fine_label_names=names)
    assert load("cifar100").class_names == tuple(names)
    np.savez(folder / "cifar100.npz", **arrays)
    assert load("cifar100").class_names == tuple(str(i) for i in range(100))
    np.savez(folder / "cifar100.npz", **arrays, fine_label_names=names[:50])
    assert "label 50 has no name; there are 50 names" in error_of("cifar100")


def test_a_test_half_alone_cannot_be_trained_on(folder):
    np.savez(folder / "fashion_mnist_test.npz", x_test=TEST[0], y_test=TEST[1])
    text = error_of("fashion_mnist")
    assert "data.source = 'fashion_mnist'" in text
    assert "fashion_mnist_test.npz holds the test half only" in text


def test_npz_without_a_test_half(folder):
    np.savez(folder / "mnist.npz", x_train=TRAIN[0], y_train=TRAIN[1])
    assert "has no arrays x_test and y_test; it has: x_train, y_train" in error_of("mnist")


# --- idx


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "mnist/raw"),
        ("mnist", "MNIST/raw"),
        ("fashion_mnist", "fashion_mnist"),
        ("fashion_mnist", "fashion_mnist/raw"),
        ("fashion_mnist", "FashionMNIST/raw"),
    ],
)
def test_idx(folder, name, place, compressed):
    original.write_idx(folder / place, {"train": TRAIN, "test": TEST}, compressed)
    data = load(name)
    assert_holds(data, TRAIN, TEST)
    assert data.class_names[9] == {"mnist": "9", "fashion_mnist": "ankle boot"}[name]


def test_the_folder_itself_is_never_taken_for_fashion(folder):
    original.write_idx(folder, {"train": TRAIN, "test": TEST})
    original.write_idx(folder / "fashion_mnist", {"train": TEST, "test": TRAIN})
    assert_holds(load("mnist"), TRAIN, TEST)
    assert_holds(load("fashion_mnist"), TEST, TRAIN)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "is not an idx file"),
        (b"\0\0\x08\x03\0\0", "is not an idx file"),
        (b"\0\0\x0d\x03" + bytes(12), "is not an idx file"),
        (b"\0\0\x08\x01" + bytes(12), "is not an idx file"),
        (original.idx_bytes(TRAIN[0])[:-1], "promises 40 x 28 x 28 values but holds 31359"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 2**31), "but holds 0"),
    ],
)
def test_damaged_idx(folder, content, fact):
    original.write_idx(folder, {"train": TRAIN, "test": TEST})
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    assert fact in error_of("mnist")


def test_damaged_gzip(folder):
    original.write_idx(folder, {"train": TRAIN, "test": TEST}, compressed=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read" in error_of("mnist")
    path.write_bytes(b"not gzip")
    assert "cannot be read" in error_of("mnist")


def test_idx_of_different_lengths(folder):
    original.write_idx(folder, {"train": (TRAIN[0], TRAIN[1][:30]), "test": TEST})
    assert "x_train has 40 records but y_train has 30 labels" in error_of("mnist")


# --- CIFAR

PICKLERS = [
    original.python2_pickle,
    *(functools.partial(original.python3_pickle, protocol=number) for number in range(5)),
]


def cifar_files(name, kind, pickled=original.python2_pickle):
    """The folder's and the archive's name, and the files in them."""
    if name == "cifar10":
        made = (COLOUR_TRAIN, COLOUR_TEST)
        if kind == "binary":
            return "cifar-10-batches-bin", "cifar-10-binary.tar.gz", original.cifar10_binary(*made)
        return "cifar-10-batches-py", "cifar-10-python.tar.gz", original.cifar10_python(*made, pickled)
    made = (HUNDRED_TRAIN, HUNDRED_TEST)
    if kind == "binary":
        return "cifar-100-binary", "cifar-100-binary.tar.gz", original.cifar100_binary(*made)
    return "cifar-100-python", "cifar-100-python.tar.gz", original.cifar100_python(*made, pickled)


def assert_is_cifar(name):
    data = load(name)
    if name == "cifar10":
        assert_holds(data, COLOUR_TRAIN, COLOUR_TEST)
        assert data.class_names == tuple(one.decode() for one in original.CIFAR10_NAMES)
    else:
        assert_holds(data, HUNDRED_TRAIN, HUNDRED_TEST)
        assert data.class_names == tuple(one.decode() for one in original.CIFAR100_NAMES)


@pytest.mark.parametrize("below", [".", "NAME"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(folder, name, kind, packed, below):
    unpacked, archive, files = cifar_files(name, kind)
    place = folder / below.replace("NAME", name)
    if packed:
        original.write_archive(place / archive, unpacked, files)
    else:
        original.write_folder(place / unpacked, files)
    assert_is_cifar(name)


@pytest.mark.parametrize("pickled", PICKLERS)
def test_cifar_of_every_way_to_pickle(folder, pickled):
    for name in ("cifar10", "cifar100"):
        unpacked, _, files = cifar_files(name, "python", pickled)
        original.write_folder(folder / unpacked, files)
        assert_is_cifar(name)


def test_unpacked_batches_go_before_an_archive_and_a_lacking_folder_after_it(folder):
    unpacked, archive, files = cifar_files("cifar10", "binary")
    (folder / archive).write_bytes(b"never read")
    original.write_folder(folder / unpacked, files)
    assert_is_cifar("cifar10")
    (folder / unpacked / "data_batch_3.bin").unlink()
    assert "cannot be read" in error_of("cifar10")
    original.write_archive(folder / archive, unpacked, files)
    assert_is_cifar("cifar10")


@pytest.mark.parametrize("cut", [1, 3073, 100_000])
def test_damaged_batches(folder, cut):
    unpacked, _, files = cifar_files("cifar10", "binary")
    files["data_batch_2.bin"] = files["data_batch_2.bin"][:-cut] if cut != 3073 else b""
    original.write_folder(folder / unpacked, files)
    assert "data_batch_2.bin" in error_of("cifar10")
    assert "no whole number of records of 3073" in error_of("cifar10")


def test_damaged_archives(folder):
    unpacked, archive, files = cifar_files("cifar100", "python")
    original.write_archive(folder / archive, unpacked, files)
    whole = (folder / archive).read_bytes()
    (folder / archive).write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in error_of("cifar100")
    original.write_archive(folder / archive, "another-folder", files)
    assert "is not in the archive" in error_of("cifar100")


class Bomb:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("member", ["data_batch_1", "test_batch", "batches.meta"])
@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_malicious_pickle_is_refused_and_not_run(folder, tmp_path, member, protocol, packed):
    unpacked, archive, files = cifar_files("cifar10", "python")
    mark = tmp_path / "executed"
    calls = [
        (os.mkdir, (str(mark),)),
        (eval, (f"__import__('os').mkdir({str(mark)!r})",)),
        (functools.partial, (os.mkdir, str(mark))),
        (np.save, (str(mark), 0)),
    ]
    for call in calls:
        for inside in (lambda bomb: bomb, lambda bomb: {"data": bomb}, lambda bomb: {"data": [{"labels": (bomb,)}]}):
            files[member] = pickle.dumps(inside(Bomb(call)), protocol=protocol)
            if packed:
                original.write_archive(folder / archive, unpacked, files)
            else:
                original.write_folder(folder / unpacked, files)
            text = error_of("cifar10")
            assert f"{member}: refused: it names" in text
            assert "never run" in text
            assert not mark.exists()
            assert not mark.with_name("executed.npy").exists()


def test_the_bombs_of_this_test_do_go_off(tmp_path):
    """Or the test above could not fail."""
    mark = tmp_path / "executed"
    pickle.loads(pickle.dumps(Bomb((os.mkdir, (str(mark),)))))
    assert mark.exists()


def plain(**changes):
    """A batch with some entries changed or, where None, left out."""
    x, y = COLOUR_TEST
    batch = {"data": x.reshape(len(x), -1), "labels": y.tolist()} | changes
    return pickle.dumps({key: value for key, value in batch.items() if value is not None}, protocol=2)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "damaged"),
        (b"\x80\x02}(", "damaged"),
        (pickle.dumps([1, 2]), "does not hold a dictionary"),
        (plain(data=None), "'data' is not an array of 3072 bytes"),
        (plain(data=[1, 2, 3]), "'data' is not an array of 3072 bytes"),
        (plain(data=np.zeros((20, 3072), np.float32)), "not plain uint8"),
        (plain(data=np.zeros((20, 3072), object)), "not plain uint8"),
        (plain(data=np.asfortranarray(np.zeros((20, 3072), np.uint8))), "not plain uint8"),
        (plain(data=np.zeros((20, 3071), np.uint8)), "'data' is not an array of 3072 bytes"),
        (plain(labels=None), "is not a list of whole numbers"),
        (plain(labels=[1.5] * 20), "is not a list of whole numbers"),
        (plain(labels=[1] * 19), "20 records but 19 labels"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n.", "does not hold a dictionary"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nN}b.", "damaged"),
        (b"\x80\x02P1\n.", "outside itself"),
        (b"\x80\x04\x8c\x01aQ.", "outside itself"),
    ],
)
def test_pickles_that_hold_something_else(folder, content, fact):
    unpacked, _, files = cifar_files("cifar10", "python")
    files["test_batch"] = content
    original.write_folder(folder / unpacked, files)
    text = error_of("cifar10")
    assert "test_batch" in text
    assert fact in text


# --- heart


def oracle(line):
    """The features of a complete line, written down once more: numbers, then indicators but for the first value."""
    age, sex, cp, trestbps, chol, fbs, restecg, thalach, exang, oldpeak, *_, num = line.split(",")
    numbers = [float(v) for v in (age, sex, trestbps, chol, fbs, thalach, exang, oldpeak)]
    return numbers + [float(cp == v) for v in "234"] + [float(restecg == v) for v in "12"], int(int(num) > 0)


@pytest.mark.parametrize("place", [".", "heart"])
def test_heart(folder, place):
    written = original.write_heart(folder / place, records=21)
    data = load("heart")
    assert data.class_names == ("no disease", "disease")
    assert data.input_shape == (13,)
    for hospital, file in HOSPITALS.items():
        train, test = data.group_train == hospital, data.group_test == hospital
        assert test.sum() == math.ceil(0.34 * 21)
        x = np.concatenate([data.x_train[train], data.x_test[test]])
        y = np.concatenate([data.y_train[train], data.y_test[test]])
        found = sorted((*row.tolist(), int(label)) for row, label in zip(x, y, strict=True))
        expected = [oracle(line) for line in written[file]]
        rows = np.array([features for features, _ in expected], dtype=np.float32)
        assert found == sorted((*row.tolist(), label) for row, (_, label) in zip(rows, expected, strict=True))
        # 8 of 21 records of which 10 are sick: 3.8 sick ones are their share.
        assert data.y_test[test].sum() in (3, 4)


def test_heart_leaves_out_incomplete_records_and_nothing_else(folder):
    original.write_heart(folder, records=10)
    rng = np.random.default_rng(5)
    file = folder / "processed.va.data"
    complete = [heart for heart in file.read_text().splitlines() if heart]
    lacking = [original.heart_line(rng, sick=True, **{name: "?"}) for name in ("age", "chol", "fbs", "oldpeak", "num")]
    dropped = [original.heart_line(rng, sick=True, slope=1, ca=2, thal="?")]
    file.write_text("\n".join([*lacking, *complete, "", *dropped]) + "\n")
    data = load("heart")
    records = sum((group == "Long Beach VA").sum() for group in (data.group_train, data.group_test))
    assert records == len(complete) + len(dropped)


def test_heart_reads_numbers_as_any_hospital_writes_them(folder):
    """Cleveland writes 2.0 where others write 2, and .7 for 0.7: the same category, the same number."""
    original.write_heart(folder)
    before = load("heart")
    file = folder / "processed.cleveland.data"
    lines = [",".join(f"{float(cell)}" if cell != "?" else "?" for cell in line.split(","))
             for line in file.read_text().splitlines()]  # fmt: skip
    file.write_text("\n".join(lines).replace(",0.", ",."))
    assert load("heart").fingerprint == before.fingerprint


def test_heart_is_federated_by_hospital(folder):
    original.write_heart(folder)
    settings = DataSettings(source="heart", alignment=12)
    fed = federate(load_dataset(settings), settings, PartitionSettings(kind="natural"), 0)
    assert fed.client_names == ("Cleveland", "Hungary", "Long Beach VA", "Switzerland")
    assert [fed.own_mask(i, "test").sum() for i in range(4)] == [7] * 4


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("1,2,3", "line 1: 3 cells; 14 are needed"),
        (original.heart_line(np.random.default_rng(0), True, cp=5), "line 1: cp = 5; it must be one of (1, 2, 3, 4)"),
        (original.heart_line(np.random.default_rng(0), True, restecg=3), "restecg = 3"),
        (original.heart_line(np.random.default_rng(0), True, age="old"), "could not convert string to float: 'old'"),
        (original.heart_line(np.random.default_rng(0), True, age="nan"), "age = nan; a number below 1e+38 is needed"),
        (original.heart_line(np.random.default_rng(0), True, age="?"), "holds no complete record"),
        ("\xe9", "cannot be read"),
    ],
)
def test_heart_mistakes(folder, line, fact):
    original.write_heart(folder)
    (folder / "processed.hungarian.data").write_text(line, encoding="latin1")
    assert fact in error_of("heart")


def test_three_hospitals_are_not_enough(folder):
    original.write_heart(folder)
    (folder / "processed.va.data").unlink()
    text = error_of("heart")
    assert "there are no files of it" in text
    assert "processed.va.data" in text


# --- nothing there


def test_a_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBNN_DATA", str(tmp_path / "nowhere"))
    assert "is not a folder" in error_of("mnist")


# --- the real files

real = pytest.mark.skipif("FEDBNN_DATA" not in os.environ, reason="FEDBNN_DATA is not set")
SIZES = {
    "mnist": ((60000, 1, 28, 28), (10000, 1, 28, 28), 10),
    "fashion_mnist": ((60000, 1, 28, 28), (10000, 1, 28, 28), 10),
    "cifar10": ((50000, 3, 32, 32), (10000, 3, 32, 32), 10),
    "cifar100": (None, None, 100),
}


@real
@pytest.mark.parametrize("name", SIZES)
def test_the_real_pictures(name):
    try:
        data = load(name)
    except UserError as error:
        pytest.skip(str(error))
    train, test, classes = SIZES[name]
    assert data.classes == classes
    if train is not None:
        assert (data.x_train.shape, data.x_test.shape) == (train, test)
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)


@real
def test_the_real_hearts_are_flambys():
    """303, 261, 46 and 130 records, split into those numbers that FLamby's data card gives."""
    try:
        data = load("heart")
    except UserError as error:
        pytest.skip(str(error))
    split = {name: ((data.group_train == name).sum(), (data.group_test == name).sum()) for name in HOSPITALS}
    assert split == {"Cleveland": (199, 104), "Hungary": (172, 89), "Switzerland": (30, 16), "Long Beach VA": (85, 45)}


def test_every_source_has_a_summary():
    assert next(iter(SOURCES)) == "digits"
    assert {"mnist", "fashion_mnist", "cifar10", "cifar100", "heart", "npz", "csv"} < set(SOURCES)
