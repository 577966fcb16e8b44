"""Alignment sets and foreign records from another data set, and a cut of the test records."""

import numpy as np
import pytest

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.other_inputs import foreign_inputs
from tests.data import original_files as original

CLIENTS = PartitionSettings(clients=4, classes_per_client=3, records_per_class=3)
X, Y = original.grey(60)
TEST_X, TEST_Y = original.grey(30, seed=1)
OTHER_X, OTHER_Y = original.grey(50, seed=2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBNN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    np.savez(tmp_path / "mnist.npz", x_train=X, y_train=Y, x_test=TEST_X, y_test=TEST_Y)
    return tmp_path


def dealt(seed=0, partition=CLIENTS, **changes):
    settings = DataSettings(**{"source": "mnist", "alignment": 20} | changes)
    return federate(load_dataset(settings), settings, partition, seed)


def rows_in(x, images):
    """Which rows of `images` these inputs are."""
    flat = [image.tobytes() for image in images]
    return [flat.index(np.rint(one * 255).astype(np.uint8).tobytes()) for one in x]


# --- alignment_source


@pytest.mark.parametrize("whole", [True, False])
def test_the_alignment_set_comes_from_the_other_training_half_if_there_is_one(folder, whole):
    if whole:
        original.write_idx(folder / "fashion_mnist", {"train": (OTHER_X, OTHER_Y), "test": (TEST_X, TEST_Y)})
    else:
        np.savez(folder / "fashion_mnist_test.npz", x_test=OTHER_X, y_test=OTHER_Y)
    fed = dealt(alignment_source="fashion_mnist")
    rows = rows_in(fed.other_alignment, OTHER_X)
    assert rows == sorted(set(rows))
    assert len(rows) == fed.alignment_points == 20
    np.testing.assert_allclose(fed.alignment() * fed.std + fed.mean, fed.other_alignment, atol=1e-5)
    assert fed.mean.item() == pytest.approx(OTHER_X[rows].mean() / 255, rel=1e-5)
    assert fed.std.item() == pytest.approx(OTHER_X[rows].std() / 255, rel=1e-5)
    assert dealt(seed=1, alignment_source="fashion_mnist").other_alignment.tobytes() != fed.other_alignment.tobytes()
    assert dealt(alignment_source="fashion_mnist").manifest() == fed.manifest()


def test_all_training_records_are_the_clients(folder):
    np.savez(folder / "other.npz", x_train=OTHER_X, y_train=OTHER_Y, x_test=TEST_X, y_test=TEST_Y)
    fed = dealt(partition=PartitionSettings(kind="iid", clients=4), alignment_source=str(folder / "other.npz"))
    np.testing.assert_array_equal(np.sort(np.concatenate(fed.client_indices)), np.arange(60))
    assert fed.alignment_indices.size == 0
    x, _ = fed.client_arrays(0)
    np.testing.assert_array_equal(x, (fed.dataset.x_train[fed.client_indices[0]] - fed.mean) / fed.std)


def test_the_manifest_tells_alignment_sets_apart(folder):
    assert not any(key.startswith("alignment_") for key in dealt().manifest())
    path = folder / "other.npz"
    np.savez(path, x_test=OTHER_X, y_test=OTHER_Y)
    first = dealt(alignment_source=str(path)).manifest()
    assert (first["alignment"], first["alignment_source"]) == (20, str(path))
    np.savez(path, x_test=OTHER_X ^ 1, y_test=OTHER_Y)
    second = dealt(alignment_source=str(path)).manifest()
    assert first.pop("alignment_fingerprint") != second.pop("alignment_fingerprint")
    assert first == second


def test_digits_can_be_another_source(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 8, 8)).astype(np.uint8), np.arange(40) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    settings = DataSettings(source="npz", path=str(tmp_path / "mine.npz"), alignment=10, alignment_source="digits")
    fed = federate(
        load_dataset(settings), settings, PartitionSettings(clients=2, classes_per_client=2, records_per_class=3), 0
    )
    digits = load_dataset(DataSettings()).x_train
    assert all(any(np.array_equal(one, digit) for digit in digits) for one in fed.other_alignment)


def alignment_error(**changes):
    with pytest.raises(UserError) as caught:
        dealt(**changes)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_alignment_mistakes(folder):
    np.savez(folder / "few.npz", x_test=OTHER_X[:5], y_test=OTHER_Y[:5])
    np.savez(folder / "nan.npz", x_test=np.full((50, 28, 28), np.nan), y_test=OTHER_Y)
    np.savez(folder / "none.npz", x_train=OTHER_X)
    assert "is the data set that clients learn" in alignment_error(alignment_source="mnist")
    assert "is the data set that clients learn" in alignment_error(
        source="npz", path=str(folder / "mnist.npz"), alignment_source=str(folder / "few" / ".." / "mnist.npz")
    )
    text = alignment_error(alignment_source="fashon_mnist")
    assert "data.alignment_source = 'fashon_mnist' is neither an .npz file nor one of" in text
    assert "did you mean 'fashion_mnist'?" in text
    assert "is neither" in alignment_error(alignment_source="csv")
    assert "there is no such file" in alignment_error(alignment_source=str(folder / "absent.npz"))
    text = alignment_error(alignment_source="digits")
    assert "an input has shape (1, 8, 8), but the data set that clients learn has (1, 28, 28)" in text
    assert "has only 5 inputs; lower it" in alignment_error(alignment_source=str(folder / "few.npz"))
    assert "holds NaN or infinity" in alignment_error(alignment_source=str(folder / "nan.npz"))
    assert "has no array 'x_test', 'y_test'" in alignment_error(alignment_source=str(folder / "none.npz"))


# --- foreign


def test_foreign_inputs_are_the_first_of_the_test_half(folder):
    original.write_idx(folder / "fashion_mnist", {"train": (X, Y), "test": (OTHER_X, OTHER_Y)})
    for wanted, expected in ((0, 50), (7, 7), (500, 50)):
        x = foreign_inputs("fashion_mnist", DataSettings(source="mnist", test_records=wanted), (1, 28, 28))
        assert rows_in(x, OTHER_X) == list(range(expected))


def test_at_most_a_thousand_foreign_inputs_are_asked_about(tmp_path):
    x = np.random.default_rng(0).normal(size=(1003, 2)).astype(np.float32)
    np.savez(tmp_path / "other.npz", x_test=x, y_test=np.zeros(1003, dtype=int))
    found = foreign_inputs(str(tmp_path / "other.npz"), DataSettings(), (2,))
    np.testing.assert_array_equal(found, x[:1000])


def test_foreign_mistakes(folder):
    settings = DataSettings(source="mnist")
    for source, fact in (
        ("mnist", "evaluation.foreign = 'mnist' is the data set that clients learn"),
        ("digits", "evaluation.foreign = 'digits': an input has shape (1, 8, 8)"),
        ("moon", "evaluation.foreign = 'moon' is neither"),
    ):
        with pytest.raises(UserError) as caught:
            foreign_inputs(source, settings, (1, 28, 28))
        assert fact in str(caught.value)


# --- test_records


@pytest.mark.parametrize("source", ["mnist", "digits", "npz", "csv"])
def test_the_first_test_records_are_kept(folder, source):
    changes = {"source": source}
    if source == "npz":
        changes["path"] = str(folder / "mnist.npz")
    if source == "csv":
        (folder / "table.csv").write_text("a,b,site\n" + "".join(f"{i},{i % 2},{i % 3}\n" for i in range(60)))
        changes |= {"path": str(folder / "table.csv"), "target": "b", "client_column": "site"}
    everything = load_dataset(DataSettings(**changes))
    some = load_dataset(DataSettings(**changes, test_records=11))
    np.testing.assert_array_equal(some.x_test, everything.x_test[:11])
    np.testing.assert_array_equal(some.y_test, everything.y_test[:11])
    np.testing.assert_array_equal(some.x_train, everything.x_train)
    assert some.class_names == everything.class_names
    if source == "csv":
        np.testing.assert_array_equal(some.group_test, everything.group_test[:11])
    assert some.fingerprint != everything.fingerprint
    assert load_dataset(DataSettings(**changes, test_records=10_000)).fingerprint == everything.fingerprint


def test_clients_do_not_depend_on_the_number_of_test_records(folder):
    some, everything = dealt(test_records=25), dealt()
    assert some.manifest()["test"] == 25
    assert some.manifest()["clients"] == everything.manifest()["clients"]


def test_every_class_a_client_holds_must_stay(folder):
    present = set(TEST_Y[:5].tolist())
    text = alignment_error(test_records=5)
    assert "data.test_records = 5 leaves no test record of class" in text
    assert not any(f"class '{label}'" in text for label in present)
    least = next(n for n in range(1, 31) if len(set(TEST_Y[:n].tolist())) == 10)
    assert len(dealt(test_records=least).evaluation("test")[1]) == least
    assert "leaves no test record" in alignment_error(test_records=least - 1)


def test_a_natural_client_is_judged_by_its_own_group(folder):
    original.write_heart(folder)
    natural = PartitionSettings(kind="natural")
    text = alignment_error(source="heart", partition=natural, test_records=7)
    assert "for client 'Hungary'" in text
    assert len(dealt(source="heart", partition=natural, test_records=28).evaluation("test")[1]) == 28


def test_a_class_that_never_had_test_records_is_no_fault_of_the_cut(folder):
    np.savez(folder / "mnist.npz", x_train=X, y_train=Y, x_test=TEST_X[TEST_Y > 0], y_test=TEST_Y[TEST_Y > 0])
    assert len(dealt(test_records=1000).evaluation("test")[1]) == (TEST_Y > 0).sum()


# --- classes that nobody has seen


def test_of_unseen_classes_nobody_holds_a_record_and_all_of_their_test_inputs_are_foreign(folder):
    fed = dealt(unseen_classes=3, alignment=5, validation=1)
    assert fed.dataset.classes == 7
    assert fed.dataset.class_names == tuple(str(digit) for digit in range(7))
    images = np.stack([image for image, label in zip(X, Y, strict=True) if label < 7])
    seen = np.concatenate([fed.dataset.x_train, fed.dataset.x_test])
    known = np.concatenate([images, TEST_X[TEST_Y < 7]])
    assert rows_in(seen[:, 0], known) == list(range(len(known)))
    foreign = foreign_inputs("unseen", DataSettings(source="mnist", unseen_classes=3), (1, 28, 28))
    assert rows_in(foreign[:, 0], TEST_X) == np.flatnonzero(TEST_Y >= 7).tolist()


def test_without_any_all_is_as_before(folder):
    assert dealt(unseen_classes=0).manifest() == dealt().manifest()


def test_unseen_classes_are_refused_where_there_are_none_or_too_many(folder):
    with pytest.raises(UserError, match=r"evaluation\.foreign = \"unseen\" needs data\.unseen_classes"):
        foreign_inputs("unseen", DataSettings(source="mnist"), (1, 28, 28))
    with pytest.raises(UserError, match=r"data\.unseen_classes = 9, but data set 'mnist' has 10 classes"):
        dealt(unseen_classes=9)
