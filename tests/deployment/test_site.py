import csv
import dataclasses

import numpy as np
import pytest
import torch

from fedbnn import ModelSettings, UserError, make_sites
from fedbnn.deployment.site import load_site
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import AlignmentTerms, Terms, alignment_hash, read_terms
from fedbnn.privacy import Budget
from tests.deployment.deployment_sample import dealt, small_config, write_sites

CONFIG = small_config("fedbnn", "privacy.mechanism=dp_teacher", 'models=[{name="cnn2"}]')


def assert_same(one, other):
    """Field by field: equal settings, and tensors that are equal in values and layout."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other


def loaded(file):
    settings = read_site(file)
    return load_site(settings, read_terms(settings.terms))


def test_a_site_is_bit_for_bit_the_one_of_the_dealt_data(tmp_path):
    files = write_sites(
        tmp_path,
        CONFIG,
        f"[privacy]\nepsilon = 3\ndelta = 1e-5\nmultiplicity = {dealt(CONFIG).multiplicity}",
        model="cnn2",
    )
    data = dealt(CONFIG)
    whole = make_sites(
        data, CONFIG.models, CONFIG.training, rounds=CONFIG.rounds, privacy=CONFIG.privacy, identified=True
    )
    for file, dealt_site in zip(files, whole, strict=True):
        client = dataclasses.replace(
            dealt_site.client,
            cap=Budget(3.0, 1e-5),
            model=ModelSettings("cnn2"),
            ledgers=file.parent / "state" / "ledgers",
            run=read_terms(file.parent / "terms.json").digest,
        )
        # Nobody asks for the operations at a site, which scales new records by its own alignment set.
        expected = dataclasses.replace(dealt_site, client=client, operations=0, view=None)
        assert_same(loaded(file), expected)


def test_without_a_table_of_privacy_the_terms_are_the_cap(tmp_path):
    client = loaded(write_sites(tmp_path, CONFIG)[0]).client
    assert client.cap is None
    assert client.multiplicity == 1
    assert client.privacy.budget == Budget(3.0, 1e-5)


def test_a_site_without_test_records_is_never_scored(tmp_path):
    site = loaded(write_sites(tmp_path, CONFIG, test_records=False)[1])
    assert len(site.evaluation) == 0
    assert site.own.shape == (0,)


def changed_records(file, **changes):
    with np.load(file.parent / "records.npz") as archive:
        arrays = dict(archive)
    arrays |= {name: value(arrays[name]) if callable(value) else value for name, value in changes.items()}
    np.savez(file.parent / "records.npz", **{name: value for name, value in arrays.items() if value is not None})


def test_labels_may_be_names(tmp_path):
    file = write_sites(tmp_path, CONFIG)[0]
    before = loaded(file)
    changed_records(file, y_train=lambda y: y.astype(np.str_), y_test=lambda y: y.astype(np.str_))
    assert_same(loaded(file), before)


def spoil(x):
    x = x.copy()
    x[2, 0, 3, 3], x[4, 0, 0, 0] = np.nan, -np.inf
    return x


def test_under_a_promise_records_that_cannot_be_used_are_left_out(tmp_path, caplog):
    """A site that does not start would tell the server what is in its records; its own log says it."""
    file = write_sites(tmp_path, CONFIG)[0]
    before = loaded(file).client
    changed_records(file, x_train=spoil)
    client = loaded(file).client
    kept = [row for row in range(len(before.train)) if row not in (2, 4)]
    assert_same(client.train, before.train.take(torch.tensor(kept)))
    assert torch.equal(client.identity, before.identity[kept])
    assert "2 record(s) hold values that are not finite and are left out" in caplog.text


def test_without_a_promise_they_are_an_error(tmp_path):
    file = write_sites(tmp_path, small_config("fedbnn"))[0]
    changed_records(file, x_train=spoil)
    with pytest.raises(UserError, match="NaN or infinity in 2 record"):
        loaded(file)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"y_train": lambda y: np.where(np.arange(len(y)) == 1, "ten", y.astype(np.str_))},
            r"y_train\[1\]: 'ten' is not a class",
        ),
        ({"y_train": lambda y: y + 5}, r"y_train holds \d+ label\(s\) outside 0 .. 9"),
        ({"y_train": lambda y: y - 10}, r"outside 0 .. 9"),
        ({"y_train": lambda y: y.astype(np.float64)}, "y_train is float64"),
        ({"y_train": lambda y: y[:-1]}, "records but y_train has"),
        ({"x_train": lambda x: x[..., :-1]}, r"shape \(1, 8, 7\), agreed was \(1, 8, 8\)"),
        ({"x_train": None}, "has no array 'x_train'"),
        ({"y_test": None}, "has no array 'y_test'"),
        ({"x_test": lambda x: (255 * x).astype(np.uint8)}, "must be alike"),
        ({"x_train": lambda x: x[:0], "y_train": lambda y: y[:0]}, "x_train has no records"),
    ],
)
def test_records_that_do_not_fit_are_refused(tmp_path, changes, words):
    file = write_sites(tmp_path, CONFIG)[0]
    changed_records(file, **changes)
    with pytest.raises(UserError, match=words):
        loaded(file)


def test_a_site_with_test_records_of_other_classes_alone_is_unscored(tmp_path):
    file = write_sites(tmp_path, CONFIG)[0]
    with np.load(file.parent / "records.npz") as archive:
        other = ~np.isin(archive["y_test"], archive["y_train"])
    changed_records(file, x_test=lambda x: x[other], y_test=lambda y: y[other])
    site = loaded(file)
    assert len(site.evaluation) > 0
    assert not site.scored


def test_bytes_of_images_are_divided_by_255(tmp_path):
    file = write_sites(tmp_path, CONFIG, test_records=False)[0]
    bytes_ = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    changed_records(file, x_train=bytes_, y_train=np.arange(6))
    as_bytes = loaded(file)
    changed_records(file, x_train=bytes_[:, None].astype(np.float32) / np.float32(255))
    assert_same(loaded(file), as_bytes)


def test_a_model_that_does_not_fit_is_refused(tmp_path):
    file = write_sites(tmp_path, CONFIG, model="cnn4")[0]
    with pytest.raises(UserError, match="cnn4"):
        loaded(file)


# Tables

NAMES = ("age", "height", "weight")


def table(folder, header, extra="", classes=("no", "yes"), labels=("no", "yes", "yes", "no", "yes", "no", "no", "yes")):
    """A site whose eight records are in a csv file; feature k of record i is 10 i + k."""
    rows = [
        {"sick": label, **{name: 10 * i + k for k, name in enumerate(NAMES)}, "note": i}
        for i, label in enumerate(labels)
    ]
    folder.mkdir(exist_ok=True)
    with (folder / "records.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    raw = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    np.savez(folder / "alignment.npz", x=raw)
    (folder / "site.toml").write_text(
        f"name = 'a'\n[data]\nsource = 'csv'\npath = 'records.csv'\ntarget = 'sick'\n{extra}\n"
    )
    terms = Terms(
        run="t", method="fedbnn", settings={}, seed=0, rounds=1, participation=1.0, sites=("b", "a"),
        class_names=classes, input_shape=(3,), alignment=AlignmentTerms("noise", 10, alignment_hash(raw)),
        training=CONFIG.training, privacy=CONFIG.privacy, evaluate_every=1,
    )  # fmt: skip
    (folder / "terms.json").write_text(terms.to_json())
    return folder / "site.toml"


def test_columns_have_the_agreed_order_whatever_their_order_in_the_file(tmp_path):
    agreed = "columns = ['age', 'height', 'weight']"
    one = loaded(table(tmp_path / "one", ["sick", *NAMES, "note"], agreed))
    other = loaded(table(tmp_path / "other", ["note", "weight", "sick", "age", "height"], agreed))
    assert one.client.index == 1
    for name in ("train", "identity", "alignment"):
        assert_same(getattr(one.client, name), getattr(other.client, name))
    assert_same(one.evaluation, other.evaluation)
    assert len(one.client.train) + len(one.evaluation) == 8
    assert len(one.evaluation) > 0
    turned = loaded(table(tmp_path / "turned", ["sick", *NAMES], "columns = ['weight', 'height', 'age']"))
    assert not torch.equal(turned.client.train.x, one.client.train.x)


def test_without_columns_all_but_the_target_are_features(tmp_path):
    one = loaded(table(tmp_path / "one", ["sick", *NAMES], "test_fraction = 0"))
    named = loaded(
        table(tmp_path / "named", [*NAMES, "sick"], "test_fraction = 0\ncolumns = ['age', 'height', 'weight']")
    )
    assert_same(one.client.train, named.client.train)
    assert one.client.train.y.tolist() == [0, 1, 1, 0, 1, 0, 0, 1]
    assert len(one.evaluation) == 0


def test_numbers_name_a_class_however_they_are_written(tmp_path):
    labels = ("1.0", "2", "2.00", "01", "2", "1", "1", "2")
    site = loaded(table(tmp_path / "one", ["sick", *NAMES], "test_fraction = 0", ("1", "2"), labels))
    assert site.client.train.y.tolist() == [0, 1, 1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("header", "extra", "labels", "words"),
    [
        (["sick", *NAMES, "note"], "", ("no",) * 8, r"shape \(4,\), agreed was \(3,\)"),
        ([*NAMES], "", ("no",) * 8, "data.target = 'sick' is not a column"),
        (
            ["sick", *NAMES],
            "columns = ['age', 'wight', 'height']",
            ("no",) * 8,
            "data.columns = 'wight'.*did you mean 'weight'",
        ),
        (["sick", *NAMES], "", ("no", "maybe"), "line 3: 'maybe' is not a class of the terms"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, header, extra, labels, words):
    file = table(tmp_path / "one", header, extra, labels=labels)
    with pytest.raises(UserError, match=words):
        loaded(file)


def test_a_row_more_moves_no_other_row_between_the_halves(tmp_path):
    """What leaves is a sum over the rows that are trained on, and the promise is about all of a site's rows."""
    rng = np.random.default_rng(0)
    rows = [[*rng.normal(size=3).round(3), rng.choice(["no", "yes"])] for _ in range(301)]

    def halves(chosen, fraction=0.25):
        file = table(tmp_path, ["sick", *NAMES], f"test_fraction = {fraction}")
        with (tmp_path / "records.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([[*NAMES, "sick"], *chosen])
        site = loaded(file)
        return [{tuple(row) for row in half.x.tolist()} for half in (site.client.train, site.evaluation)]

    train, test = halves(rows)
    assert len(train) + len(test) == 301
    assert 45 < len(test) < 105  # 75 are expected, with a standard deviation of 7.5
    for left_out in (0, 17, 300):
        fewer = halves([row for at, row in enumerate(rows) if at != left_out])
        assert fewer[0] <= train
        assert fewer[1] <= test
        assert len(train - fewer[0]) + len(test - fewer[1]) == 1
    assert halves(rows[::-1]) == [train, test]
    more = halves(rows, 0.5)
    assert test < more[1]
