import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.data import PartitionSettings
from fedbnn.data import partition as partitions

seeds = st.integers(0, 2**32 - 1)


def generator(seed):
    return np.random.default_rng(seed)


def assert_covers(parts, records):
    """Every record is dealt exactly once."""
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(records))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "shards"},
        {"clients": 0},
        {"classes_per_client": 0},
        {"records_per_class": -1},
        {"records_per_client": -1},
        {"alpha": 0.0},
        {"alpha": float("inf")},
        {"clients": 2.0},
        {"small_share": -0.1},
        {"small_share": 1.1},
        {"small_records_per_class": 0},
        {"unknown": 1},
    ],
)
def test_settings_are_strict(wrong):
    with pytest.raises(UserError):
        PartitionSettings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        ({"kind": "iid"}, ["partition.small_share = 0.5", 'partition.kind = "classes"', '"iid" and 8']),
        ({"records_per_class": 0}, ["partition.small_share = 0.5", '"classes" and 0', "of 1 or more"]),
        ({"small_records_per_class": 9}, ["small_records_per_class = 9", "partition.records_per_class = 8"]),
    ],
)
def test_little_data_is_less_than_a_promised_number_of_records(wrong, facts):
    PartitionSettings(**wrong)
    with pytest.raises(UserError) as caught:
        PartitionSettings(small_share=0.5, **wrong)
    assert "\n" not in str(caught.value)
    assert all(fact in str(caught.value) for fact in facts)


def test_names_sort_like_numbers():
    names = [partitions.client_name(i, 20) for i in range(20)]
    assert names == sorted(names)
    assert names[7] == "client-07"
    assert partitions.client_name(0, 1) == "client-0"


@given(st.integers(1, 40), st.integers(1, 12), st.data(), seeds)
def test_classes_are_dealt_evenly(clients, classes, data, seed):
    per_client = data.draw(st.integers(1, classes))
    holds = partitions.deal_classes(clients, per_client, classes, generator(seed))
    assert (holds.sum(axis=1) == per_client).all()
    assert np.ptp(holds.sum(axis=0)) <= 1


def test_deals_differ():
    deals = {partitions.deal_classes(4, 3, 10, generator(seed)).tobytes() for seed in range(20)}
    assert len(deals) == 20


def test_more_classes_than_exist():
    with pytest.raises(UserError, match=r"classes_per_client = 11, but the data has 10 classes"):
        partitions.deal_classes(3, 11, 10, generator(0))


@given(
    clients=st.integers(1, 12),
    classes=st.integers(2, 6),
    per_class=st.integers(1, 5),
    spare=st.integers(0, 4),
    data=st.data(),
    seed=seeds,
)
def test_promised_records_of_each_class(*, clients, classes, per_class, spare, data, seed):
    per_client = data.draw(st.integers(1, classes))
    rng = generator(seed)
    holds = partitions.deal_classes(clients, per_client, classes, rng)
    labels = rng.permutation(np.repeat(np.arange(classes), holds.sum(axis=0) * per_class + spare))
    names = tuple(str(c) for c in range(classes))
    parts = partitions.by_classes(labels, holds, per_class, names, rng)
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    np.testing.assert_array_equal(counts, holds * per_class)
    dealt = np.concatenate(parts)
    assert len(np.unique(dealt)) == len(dealt)


@given(st.integers(1, 12), st.lists(st.integers(12, 40), min_size=2, max_size=6), st.data(), seeds)
def test_all_records_of_each_class_shared_evenly(clients, sizes, data, seed):
    classes = len(sizes)
    per_client = data.draw(st.integers(1, classes))
    rng = generator(seed)
    holds = partitions.deal_classes(clients, per_client, classes, rng)
    labels = rng.permutation(np.repeat(np.arange(classes), sizes))
    parts = partitions.by_classes(labels, holds, 0, tuple(map(str, range(classes))), rng)
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    assert ((counts > 0) == holds).all()
    for label in np.flatnonzero(holds.any(axis=0)):
        shares = counts[holds[:, label], label]
        assert np.ptp(shares) <= 1
        assert shares.sum() == sizes[label]
    assert len(np.unique(np.concatenate(parts))) == counts.sum()


def test_too_few_records_names_the_worst_class_and_the_total():
    labels = np.repeat([0, 1, 2], [10, 4, 9])
    holds = np.ones((2, 3), dtype=bool)
    with pytest.raises(UserError) as caught:
        partitions.by_classes(labels, holds, 5, ("ash", "elm", "oak"), generator(0))
    text = str(caught.value)
    assert "class 'elm' has 4 for 2 clients x 5" in text
    assert "7 are missing in all" in text
    assert "lower partition.records_per_class" in text


def test_more_holders_than_records_to_share():
    labels = np.repeat([0, 1], [10, 2])
    with pytest.raises(UserError, match=r"class 'b' has 2 for 3 clients x 1; 1 are missing in all"):
        partitions.by_classes(labels, np.ones((3, 2), dtype=bool), 0, ("a", "b"), generator(0))


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0, 1))
def test_clients_with_little_data_are_nested_and_evenly_mixed(clients, one, other):
    fewer, more = (partitions.small_clients(clients, share) for share in sorted((one, other)))
    assert set(fewer) <= set(more)
    assert len(more) == round(max(one, other) * clients)
    is_small = np.isin(np.arange(clients), more)
    # How far the number of them in any stretch of the list is from that stretch's share.
    ahead = np.concatenate([[0], np.cumsum(is_small - is_small.mean())])
    assert np.ptp(ahead) < 3
    steps = np.diff(more)
    assert len(set(steps)) <= 3


@pytest.mark.parametrize("period", [2, 3, 4])
def test_little_data_does_not_go_with_a_place_in_a_recurring_order(period):
    """Half of 60 clients have little, and so has about half of those with each of some architectures in turn."""
    places = np.bincount(partitions.small_clients(60, 0.5) % period, minlength=period)
    assert np.abs(places - 30 / period).max() <= 2


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 6), seeds)
def test_few_records_of_each_class(labels, few, seed):
    labels, part = np.array(labels), generator(seed).permutation(len(labels))
    kept = partitions.few_of_each_class(labels, part, few)
    assert len(set(kept)) == len(kept)
    for label in range(5):
        assert kept[labels[kept] == label].tolist() == [row for row in part if labels[row] == label][:few]


@given(st.integers(1, 20), st.integers(0, 100), seeds)
def test_iid_shares_are_equal(clients, extra, seed):
    parts = partitions.iid(clients + extra, clients, generator(seed))
    assert_covers(parts, clients + extra)
    assert np.ptp([len(part) for part in parts]) <= 1


@given(st.integers(1, 20), st.integers(0, 200), st.floats(1e-3, 1e6), seeds)
def test_quantity_leaves_nobody_empty(clients, extra, alpha, seed):
    parts = partitions.quantity(clients + extra, clients, alpha, generator(seed))
    assert len(parts) == clients
    assert_covers(parts, clients + extra)
    assert min(len(part) for part in parts) >= 1


def test_quantity_follows_the_draw():
    rng = generator(3)
    expected = 1 + (10_000 - 8) * rng.dirichlet(np.full(8, 0.5))
    sizes = [len(part) for part in partitions.quantity(10_000, 8, 0.5, generator(3))]
    np.testing.assert_allclose(sizes, expected, atol=1)


def test_alpha_sets_the_skew_of_sizes():
    def spread(alpha):
        return np.mean(
            [np.std([len(p) for p in partitions.quantity(1000, 10, alpha, generator(s))]) for s in range(20)]
        )

    assert spread(0.1) > 2 * spread(1.0) > 4 * spread(100.0)


@given(st.integers(1, 8), st.lists(st.integers(20, 60), min_size=2, max_size=5), seeds)
def test_dirichlet_deals_every_record_once(clients, sizes, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    parts = partitions.dirichlet(labels, clients, 1.0, generator(seed))
    assert len(parts) == clients
    assert_covers(parts, len(labels))
    assert min(len(part) for part in parts) >= 1


def test_alpha_sets_the_skew_of_classes():
    labels = np.repeat(np.arange(5), 200)

    def dominance(alpha):
        """Mean share of a client's largest class: 1/5 when even."""
        parts = partitions.dirichlet(labels, 10, alpha, generator(0))
        return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])

    assert dominance(1000.0) < 0.23
    assert dominance(0.3) > 0.4


def test_dirichlet_that_leaves_clients_empty():
    labels = np.repeat([0, 1], 50)
    with pytest.raises(UserError) as caught:
        partitions.dirichlet(labels, 30, 0.01, generator(0))
    text = str(caught.value)
    assert "partition.alpha = 0.01" in text
    assert "client-0" in text
    assert "100 draws" in text
    assert "raise partition.alpha or lower partition.clients" in text


@given(st.lists(st.sampled_from(["b", "a", "Zoë", "c d", "10", "9"]), min_size=1, max_size=50))
def test_natural_clients_are_the_groups(groups):
    parts, names = partitions.natural(np.array(groups))
    assert names == tuple(sorted(set(groups)))
    assert_covers(parts, len(groups))
    for name, part in zip(names, parts, strict=True):
        assert {groups[row] for row in part} == {name}
