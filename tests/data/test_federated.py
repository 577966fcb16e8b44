import dataclasses
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.identity import fingerprint_of_set
from fedbnn.data.normalisation import fit_normalisation
from fedbnn.data.partition import small_clients

KINDS = ["classes", "iid", "dirichlet", "quantity", "natural"]


@pytest.fixture(scope="module")
def digits():
    return load_dataset(DataSettings())


def everything(fed):
    return np.concatenate([*fed.client_indices, fed.alignment_indices, fed.validation_indices])


def assert_same(a, b):
    assert a.client_names == b.client_names
    for left, right in zip(a.client_indices, b.client_indices, strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(a.alignment_indices, b.alignment_indices)
    np.testing.assert_array_equal(a.validation_indices, b.validation_indices)
    np.testing.assert_array_equal(a.mean, b.mean)
    np.testing.assert_array_equal(a.std, b.std)


@pytest.mark.parametrize("seed", range(21))
def test_the_digits_demo_uses_the_whole_pool(digits, seed):
    fed = federate(digits, DataSettings(validation=147), PartitionSettings(), seed)
    np.testing.assert_array_equal(np.sort(everything(fed)), np.arange(1347))
    assert fed.n_clients == 20
    for i in range(20):
        counts = np.bincount(digits.y_train[fed.client_indices[i]], minlength=10)
        assert sorted(counts.tolist()) == [0] * 5 + [8] * 5
    assert (len(fed.alignment_indices), len(fed.validation_indices)) == (400, 147)
    assert fed.manifest()["largest_multiplicity"] == 1


@given(
    kind=st.sampled_from(KINDS),
    clients=st.integers(1, 6),
    alignment=st.integers(0, 30),
    validation=st.integers(0, 30),
    promised=st.integers(0, 4),
    seed=st.integers(0, 2**40),
)
def test_disjoint_and_exact_for_every_kind(make_dataset, *, kind, clients, alignment, validation, promised, seed):
    data = make_dataset([45, 40, 35, 30], groups=5)
    fed = federate(
        data,
        DataSettings(alignment=alignment, validation=validation),
        PartitionSettings(
            kind=kind,
            clients=clients,
            classes_per_client=2,
            records_per_class=promised,
            records_per_client=promised * 3,
            alpha=2.0,
        ),
        seed,
    )
    rows = everything(fed)
    assert len(np.unique(rows)) == len(rows)
    assert set(rows.tolist()) <= set(range(150))
    assert len(fed.alignment_indices) == alignment
    assert len(fed.validation_indices) == validation
    for indices in (*fed.client_indices, fed.alignment_indices, fed.validation_indices):
        assert indices.dtype == np.int64
        assert (np.diff(indices) > 0).all()
    sizes = [len(part) for part in fed.client_indices]
    assert min(sizes) >= 1
    assert fed.n_clients == len(fed.client_names) == (5 if kind == "natural" else clients)
    if kind == "classes":
        assert all(len(fed.own_classes(i)) == 2 for i in range(clients))
        if promised:
            assert set(sizes) == {2 * promised}
    elif kind == "natural" or not promised:
        assert sum(sizes) == 150 - alignment - validation
    else:
        assert sum(sizes) == clients * promised * 3
        if kind == "iid":
            assert set(sizes) == {promised * 3}


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_and_nothing_else_does(make_dataset, kind):
    data = make_dataset([60, 60, 60], groups=4)
    settings = DataSettings(alignment=20, validation=10)
    partition = PartitionSettings(kind=kind, clients=4, classes_per_client=2, alpha=1.0)
    np.random.seed(1)  # noqa: NPY002
    first = federate(data, settings, partition, 5)
    np.random.seed(2)  # noqa: NPY002
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002
    assert_same(first, federate(data, settings, partition, 5))
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002
    other = federate(data, settings, partition, 6)
    assert not np.array_equal(first.alignment_indices, other.alignment_indices)
    assert any(not np.array_equal(a, b) for a, b in zip(first.client_indices, other.client_indices, strict=True))


@pytest.mark.parametrize(
    ("kind", "promised", "expected"),
    [
        ("classes", 0, "33ba14bad7fbc696"),
        ("classes", 4, "bd7db8ffe58d8ba5"),
        ("iid", 0, "cda9630db07275cb"),
        ("iid", 4, "608d0fa1b810ddd9"),
        ("dirichlet", 0, "b055c7bb0e9d7e88"),
        ("dirichlet", 4, "9f071e19e1e20c6e"),
        ("quantity", 0, "94af47d86d53f765"),
        ("quantity", 4, "94a44c78876970ae"),
        ("natural", 0, "5fdb79f472337f33"),
    ],
)
def test_a_seed_deals_the_same_records_in_every_version(make_dataset, kind, promised, expected):
    """Runs of an earlier version can go on and be compared with: these digests were taken before `small_share`."""
    partition = PartitionSettings(
        kind=kind,
        clients=6,
        classes_per_client=2,
        records_per_class=promised,
        records_per_client=3 * promised,
        alpha=2.0,
    )
    data = make_dataset([45, 40, 35, 30], groups=5)
    fed = federate(data, DataSettings(alignment=20, validation=10), partition, 7)
    parts = (*fed.client_indices, fed.alignment_indices, fed.validation_indices)
    found = hashlib.sha256(b"".join(part.astype("<i8").tobytes() + b"|" for part in parts))
    assert found.hexdigest()[:16] == expected


@given(
    clients=st.integers(1, 8),
    promised=st.integers(1, 5),
    share=st.floats(0, 1),
    data=st.data(),
    seed=st.integers(0, 2**40),
)
def test_little_data_takes_records_from_those_who_have_it_and_changes_nothing_else(
    make_dataset, *, clients, promised, share, data, seed
):
    few = data.draw(st.integers(1, promised))
    records = make_dataset([45, 40, 35, 30])
    settings = DataSettings(alignment=20, validation=10)
    partition = PartitionSettings(
        clients=clients, classes_per_client=2, records_per_class=promised, small_records_per_class=few
    )
    before = federate(records, settings, partition, seed)
    after = federate(records, settings, dataclasses.replace(partition, small_share=share), seed)
    small = set(small_clients(clients, share).tolist())
    for i in range(clients):
        had, has = before.client_indices[i], after.client_indices[i]
        if i in small:
            assert set(has) <= set(had)
            assert np.bincount(records.y_train[has])[after.own_classes(i)].tolist() == [few, few]
            np.testing.assert_array_equal(after.own_classes(i), before.own_classes(i))
        else:
            np.testing.assert_array_equal(has, had)
    assert_same(dataclasses.replace(after, client_indices=before.client_indices), before)
    most = dataclasses.replace(partition, small_share=share, small_records_per_class=promised)
    assert_same(federate(records, settings, most, seed), before)


def test_a_rare_class_is_served_before_the_alignment_set(make_dataset):
    data = make_dataset([8, 192])
    partition = PartitionSettings(clients=2, classes_per_client=2, records_per_class=4)
    for seed in range(10):
        fed = federate(data, DataSettings(alignment=184), partition, seed)
        assert len(fed.alignment_indices) == 184
        assert all(len(part) == 8 for part in fed.client_indices)


def test_a_small_natural_client_keeps_a_record(make_dataset):
    data = make_dataset([100, 100])
    group = np.full(200, "large")
    group[17] = "tiny"
    data = dataclasses.replace(data, group_train=group, group_test=np.full(6, "large"))
    for seed in range(10):
        fed = federate(data, DataSettings(alignment=198), PartitionSettings(kind="natural"), seed)
        assert fed.client_names == ("large", "tiny")
        assert [len(part) for part in fed.client_indices] == [1, 1]


@pytest.mark.parametrize("kind", ["classes", "iid"])
def test_alignment_is_drawn_uniformly(make_dataset, kind):
    """Each of 40 equal records is public with probability 10 / 40, for any record and order."""
    data = make_dataset([20, 20])
    partition = PartitionSettings(kind=kind, clients=2, classes_per_client=2, records_per_class=3)
    draws = 2000
    hits = np.zeros(40)
    for seed in range(draws):
        hits[federate(data, DataSettings(alignment=10), partition, seed).alignment_indices] += 1
    deviation = (hits - draws / 4) / np.sqrt(draws * 0.25 * 0.75)
    assert np.abs(deviation).max() < 4.5


def test_normalisation_sees_only_the_alignment_set(make_dataset):
    data = make_dataset([50, 50])
    settings, partition = DataSettings(alignment=30, validation=5), PartitionSettings(kind="iid", clients=3)
    fed = federate(data, settings, partition, 0)
    private = np.setdiff1d(np.arange(100), fed.alignment_indices)
    changed = data.x_train.copy()
    changed[private] += 1000
    again = federate(dataclasses.replace(data, x_train=changed, x_test=data.x_test * 7), settings, partition, 0)
    assert_same(fed, again)

    changed = data.x_train.copy()
    changed[fed.alignment_indices[0]] += 1000
    moved = federate(dataclasses.replace(data, x_train=changed), settings, partition, 0)
    assert (moved.mean != fed.mean).all()


def test_what_is_handed_out_is_normalised(make_dataset):
    data = make_dataset([50, 50], groups=3)
    fed = federate(data, DataSettings(alignment=40, validation=20), PartitionSettings(kind="iid", clients=2), 1)
    public = fed.alignment()
    np.testing.assert_allclose(public.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(public.std(axis=0), 1, atol=1e-5)

    def raw(x):
        return np.rint(x * fed.std + fed.mean)

    x, y = fed.client_arrays(1)
    np.testing.assert_array_equal(raw(x)[:, 0], fed.client_indices[1])
    np.testing.assert_array_equal(y, data.y_train[fed.client_indices[1]])
    x, y, groups = fed.evaluation("validation")
    np.testing.assert_array_equal(raw(x)[:, 0], fed.validation_indices)
    np.testing.assert_array_equal(y, data.y_train[fed.validation_indices])
    np.testing.assert_array_equal(groups, data.group_train[fed.validation_indices])
    x, y, groups = fed.evaluation("test")
    np.testing.assert_array_equal(raw(x)[:, 0], np.arange(6))
    np.testing.assert_array_equal(y, data.y_test)
    np.testing.assert_array_equal(groups, data.group_test)
    assert x.dtype == public.dtype == fed.client_arrays(0)[0].dtype == np.float32


def test_normalisation_per_channel_and_of_constants():
    x = np.random.default_rng(0).normal(3, 2, size=(50, 3, 4, 4)).astype(np.float32)
    x[:, 1] = 7
    mean, std = fit_normalisation(x)
    assert mean.shape == std.shape == (3, 1, 1)
    np.testing.assert_allclose(mean[0, 0, 0], x[:, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(std[2, 0, 0], x[:, 2].std(), rtol=1e-5)
    assert (mean[1, 0, 0], std[1, 0, 0]) == (7, 1)
    table_mean, table_std = fit_normalisation(np.array([[1, 5], [3, 5]], dtype=np.float32))
    assert table_mean.tolist() == [2, 5]
    assert table_std.tolist() == [1, 1]


def test_no_alignment_set_means_no_scaling(digits, make_dataset):
    fed = federate(digits, DataSettings(alignment=0), PartitionSettings(), 0)
    assert fed.alignment().shape == (0, 1, 8, 8)
    assert fed.mean.tolist() == [[[0]]]
    assert fed.std.tolist() == [[[1]]]
    np.testing.assert_array_equal(fed.evaluation("test")[0], digits.x_test)
    table = federate(make_dataset([9, 9]), DataSettings(alignment=0), PartitionSettings(kind="iid", clients=2), 0)
    assert table.mean.tolist() == [0, 0]


def test_own_records_are_those_of_own_classes(digits):
    fed = federate(digits, DataSettings(validation=100), PartitionSettings(), 3)
    for split in ("test", "validation"):
        _, y, _ = fed.evaluation(split)
        for i in range(fed.n_clients):
            own = set(fed.client_arrays(i)[1].tolist())
            assert fed.own_classes(i).tolist() == sorted(own)
            assert fed.own_mask(i, split).tolist() == [label in own for label in y.tolist()]


def test_own_records_of_a_natural_client_are_its_group(make_dataset):
    data = make_dataset([40, 40], groups=3)
    fed = federate(data, DataSettings(alignment=10, validation=20), PartitionSettings(kind="natural"), 0)
    assert fed.natural
    assert fed.client_names == ("site 0", "site 1", "site 2")
    for split in ("test", "validation"):
        groups = fed.evaluation(split)[2]
        for i, name in enumerate(fed.client_names):
            mask = fed.own_mask(i, split)
            assert mask.dtype == np.bool_
            assert mask.tolist() == [group == name for group in groups]
            assert mask.any()


def test_no_validation_records(digits):
    fed = federate(digits, DataSettings(), PartitionSettings(), 0)
    with pytest.raises(UserError, match=r"data\.validation = 0"):
        fed.evaluation("validation")
    with pytest.raises(UserError, match=r"data\.validation = 0"):
        fed.own_mask(0, "validation")


def test_labels_handed_out_are_copies(digits):
    fed = federate(digits, DataSettings(), PartitionSettings(), 0)
    fed.evaluation("test")[1][:] = 0
    fed.client_arrays(0)[1][:] = 0
    assert digits.y_test.max() == 9
    assert len(fed.own_classes(0)) == 5


def test_manifest(digits):
    fed = federate(digits, DataSettings(validation=7), PartitionSettings(), 0)
    manifest = json.loads(json.dumps(fed.manifest()))
    assert manifest["dataset"] == "digits"
    assert manifest["fingerprint"] == digits.fingerprint
    sizes = [manifest[key] for key in ("train", "test", "alignment", "validation")]
    assert sizes == [1347, 450, 400, 7]
    assert [client["name"] for client in manifest["clients"]] == list(fed.client_names)
    for i, client in enumerate(manifest["clients"]):
        assert client["records"] == 40 == sum(client["class_counts"])
        assert np.flatnonzero(client["class_counts"]).tolist() == fed.own_classes(i).tolist()
    assert len({client["indices_sha256"] for client in manifest["clients"]}) == 20


def test_multiplicity_is_counted(digits):
    fed = federate(digits, DataSettings(), PartitionSettings(), 0)
    shared = np.union1d(fed.client_indices[1], fed.client_indices[0][:1])
    thrice = np.union1d(fed.client_indices[2], fed.client_indices[0][:1])
    indices = (fed.client_indices[0], shared, thrice, *fed.client_indices[3:])
    assert dataclasses.replace(fed, client_indices=indices).manifest()["largest_multiplicity"] == 3


@pytest.mark.parametrize(
    ("data", "partition", "facts"),
    [
        ({"alignment": 5000}, {}, ["clients need 800", "data.alignment = 5000", "1347", "4453 are missing"]),
        ({"validation": 148}, {}, ["data.validation = 148", "1348 in all", "1 are missing"]),
        ({"alignment": 1340}, {"kind": "iid"}, ["clients need 20", "13 are missing"]),
        (
            {},
            {"kind": "dirichlet", "records_per_client": 100},
            ["clients need 2000", "1053 are missing"],
        ),
        ({"alignment": 1347}, {"records_per_class": 0}, ["20 are missing"]),
        ({}, {"classes_per_client": 11}, ["classes_per_client = 11", "10 classes"]),
        ({}, {"records_per_class": 50}, ["class '", "for 10 clients x 50", "missing in all"]),
        ({}, {"kind": "natural"}, ["natural", "'digits' names no clients", "data.client_column"]),
    ],
)
def test_mistakes_are_named_in_one_line(digits, data, partition, facts):
    with pytest.raises(UserError) as caught:
        federate(digits, DataSettings(**data), PartitionSettings(**partition), 0)
    text = str(caught.value)
    assert "\n" not in text
    for fact in facts:
        assert fact in text


def test_missing_records_in_all_are_counted(digits):
    have = np.bincount(digits.y_train)
    missing = int(np.maximum(500 - have, 0).sum())
    with pytest.raises(UserError, match=rf"class '8' has 131 .* {missing} are missing in all"):
        federate(digits, DataSettings(), PartitionSettings(records_per_class=50), 0)


def test_a_negative_seed(digits):
    with pytest.raises(UserError, match="seed = -1"):
        federate(digits, DataSettings(), PartitionSettings(), -1)


def known(data, client):
    return fingerprint_of_set(data.identity(client))


def test_a_client_is_known_by_its_raw_records_whatever_the_alignment_set(digits):
    partition = PartitionSettings(clients=3, classes_per_client=4, records_per_class=5)
    fed = federate(digits, DataSettings(alignment=50), partition, 0)
    other_scaling = dataclasses.replace(fed, mean=fed.mean + 1, alignment_indices=fed.alignment_indices[:20])
    assert known(other_scaling, 0) == known(fed, 0)
    assert not np.array_equal(other_scaling.client_arrays(0)[0], fed.client_arrays(0)[0])
    first, *rest = fed.client_indices
    shuffled = dataclasses.replace(fed, client_indices=(first[::-1], *rest))
    assert known(shuffled, 0) == known(fed, 0)
    fewer = dataclasses.replace(fed, client_indices=(first[1:], *rest))
    twice = dataclasses.replace(fed, client_indices=(np.append(first, first[0]), *rest))
    relabelled = dataclasses.replace(
        fed, dataset=dataclasses.replace(fed.dataset, y_train=(fed.dataset.y_train + 1) % fed.dataset.classes)
    )
    found = {known(one, 0) for one in (fed, fewer, twice, relabelled)}
    assert len(found | {known(fed, 1), known(fed, 2)}) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_calibration_takes_about_its_share_of_each_client_and_nothing_else(make_dataset, kind):
    data = make_dataset([400, 300, 200, 100], groups=3)
    partition = PartitionSettings(kind=kind, clients=3, classes_per_client=3)
    plain = federate(data, DataSettings(alignment=20), partition, 5)
    held = federate(data, DataSettings(alignment=20, calibration=0.3), partition, 5)
    kept, dealt = 0, 0
    for i in range(3):
        both = np.concatenate([held.client_indices[i], held.calibration_indices[i]])
        np.testing.assert_array_equal(np.sort(both), plain.client_indices[i])
        x, y = held.calibration_arrays(i)
        np.testing.assert_array_equal(x, held.seen(data.x_train[held.calibration_indices[i]]))
        np.testing.assert_array_equal(y, data.y_train[held.calibration_indices[i]])
        kept, dealt = kept + len(y), dealt + len(both)
    assert abs(kept - 0.3 * dealt) < 4 * np.sqrt(0.3 * 0.7 * dealt)
    np.testing.assert_array_equal(held.alignment_indices, plain.alignment_indices)
    counted = [client.pop("calibration") for client in held.manifest()["clients"]]
    assert counted == [len(rows) for rows in held.calibration_indices]
    assert all("calibration" not in client for client in plain.manifest()["clients"])
    assert plain.calibration_arrays(0)[0].shape == (0, *data.input_shape)


def test_a_record_that_several_clients_hold_is_kept_back_by_all_of_them(make_dataset):
    data = make_dataset([40, 40])
    partition = PartitionSettings(clients=6, classes_per_client=2, records_per_class=0)
    held = federate(data, DataSettings(alignment=0, calibration=0.4), partition, 1)
    trained = set(np.concatenate(held.client_indices).tolist())
    assert trained.isdisjoint(np.concatenate(held.calibration_indices).tolist())


def test_calibration_that_leaves_nothing_to_train_on_is_refused(make_dataset):
    partition = PartitionSettings(kind="iid", clients=20)
    with pytest.raises(UserError, match=r"data.calibration = 0.95 leaves client 'client-\d+' none of its 1 record"):
        federate(make_dataset([10, 10]), DataSettings(alignment=0, calibration=0.95), partition, 0)


@pytest.mark.parametrize("skew", [1.5, 3.0, 10.0])
def test_classes_of_a_skewed_alignment_set_fall_in_equal_ratios(digits, skew):
    few = PartitionSettings(clients=5, records_per_class=8)
    fed = federate(digits, DataSettings(alignment=300, validation=50, alignment_skew=skew), few, 3)
    counts = np.sort(np.bincount(digits.y_train[fed.alignment_indices], minlength=10))
    expected = 300 * skew ** (np.arange(10) / 9) / (skew ** (np.arange(10) / 9)).sum()
    assert counts.sum() == 300
    assert np.abs(counts - expected).max() <= 1
    held = np.concatenate([*fed.client_indices, fed.alignment_indices, fed.validation_indices])
    assert len(np.unique(held)) == len(held) == 5 * 5 * 8 + 300 + 50


def test_a_skewed_alignment_set_leaves_clients_their_records_and_each_seed_draws_its_rare_classes(digits):
    few = PartitionSettings(clients=5, records_per_class=8)
    plain, *skewed = (
        [federate(digits, DataSettings(alignment=200, alignment_skew=skew), few, seed) for seed in range(6)]
        for skew in (1.0, 10.0)
    )
    for a, b in zip(plain, skewed[0], strict=True):
        for left, right in zip(a.client_indices, b.client_indices, strict=True):
            np.testing.assert_array_equal(left, right)
    rarest = {int(np.bincount(digits.y_train[fed.alignment_indices], minlength=10).argmin()) for fed in skewed[0]}
    assert len(rarest) > 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"alignment": 1000, "alignment_skew": 10.0},
            r"data\.alignment_skew = 10: of 1000 alignment points \d+ would be",
        ),
        ({"alignment_skew": 2.0, "alignment_source": "noise"}, "not beside data.alignment_source; set it to 1"),
    ],
)
def test_a_skew_that_cannot_be_is_refused(changes, reason):
    def dealt():
        settings = DataSettings(**changes)
        federate(load_dataset(settings), settings, PartitionSettings(clients=2, records_per_class=8), 0)

    with pytest.raises(UserError, match=reason):
        dealt()
