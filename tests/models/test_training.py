import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, TrainingSettings, channels_last, epochs, fit_point, steps, take_rows


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(size):
    """Records whose input and label are their own number."""
    return Records(torch.arange(size, dtype=torch.float32)[:, None], torch.arange(size))


def test_passes_of_the_warm_up_and_of_a_round():
    budget = TrainingSettings(local_epochs=3, warmup_epochs=7)
    assert [budget.passes(r) for r in range(3)] == [7, 3, 3]


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 4), st.integers(0, 99))
def test_epochs_visit_each_record_once_a_pass(size, batch_size, passes, seed):
    batches = list(epochs(numbered(size), passes, batch_size, generator(seed)))
    per_pass = -(-size // batch_size)
    assert len(batches) == passes * per_pass
    for number in range(passes):
        one = batches[number * per_pass : (number + 1) * per_pass]
        assert [len(batch) for batch in one[:-1]] == [batch_size] * (per_pass - 1)
        visited = torch.cat([batch.y for batch in one])
        assert sorted(visited.tolist()) == list(range(size))
    for batch in batches:
        assert torch.equal(batch.x[:, 0].long(), batch.y)


def test_each_pass_has_a_new_order():
    first, second = epochs(numbered(30), 2, 30, generator())
    assert not torch.equal(first.y, second.y)


def test_the_order_is_the_generators():
    def order(seed):
        return torch.cat([batch.y for batch in epochs(numbered(30), 2, 7, generator(seed))])

    assert torch.equal(order(1), order(1))
    assert not torch.equal(order(1), order(2))


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 60), st.integers(0, 99))
def test_steps_give_exactly_count_batches(size, batch_size, count, seed):
    batches = list(steps(numbered(size), count, batch_size, generator(seed)))
    assert len(batches) == count
    per_pass = -(-size // batch_size)
    visits = Counter(torch.cat([b.y for b in batches]).tolist()) if batches else Counter()
    full = count // per_pass
    assert all(full <= visits[record] <= full + 1 for record in range(size))


@pytest.mark.parametrize("shape", [(9, 5), (9, 3, 4, 5), (9, 1, 8, 8)])
def test_take_rows_is_indexing(shape):
    x = channels_last(torch.randn(shape, generator=generator()))
    index = torch.tensor([3, 3, 0, 8])
    taken = take_rows(x, index)
    assert torch.equal(taken, x[index])
    assert taken.shape == (4, *shape[1:])
    if len(shape) == 4:
        assert taken.is_contiguous(memory_format=torch.channels_last)
    else:
        assert taken.is_contiguous()


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 4, 5)])
def test_channels_last_is_a_copy_with_the_same_values(shape):
    x = torch.randn(shape, generator=generator())
    laid = channels_last(x)
    assert torch.equal(laid, x)
    assert laid.data_ptr() != x.data_ptr()
    assert laid.is_contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format)


def test_take_keeps_inputs_and_labels_together():
    taken = numbered(10).take(torch.tensor([7, 2]))
    assert taken.x[:, 0].tolist() == [7.0, 2.0]
    assert taken.y.tolist() == [7, 2]


CASES = [
    (ModelSettings("mlp", options={"hidden": [9]}), (6,)),
    (ModelSettings("cnn2", options={"channels": [3, 4], "hidden": 5}), (1, 8, 8)),
]


def example(shape, soft=False, size=23, classes=4):
    rng = generator(5)
    x = channels_last(torch.randn(size, *shape, generator=rng))
    if soft:
        return Records(x, torch.rand(size, classes, generator=rng).softmax(1))
    return Records(x, torch.randint(classes, (size,), generator=rng))


@pytest.mark.parametrize(("model", "shape"), CASES, ids=["mlp", "cnn2"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fit_point_is_adam(model, shape, soft, weight_decay):
    records = example(shape, soft)
    network = FlatNetwork(lambda: build(model, shape, 4), seed=3)
    start = network.weights.clone()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        plain = build(model, shape, 4)
    optimiser = torch.optim.Adam(plain.parameters(), lr=1e-2, weight_decay=weight_decay)
    for batch in epochs(records, 4, 8, generator(1)):
        optimiser.zero_grad()
        expected_loss = functional.cross_entropy(plain(batch.x), batch.y)
        expected_loss.backward()
        optimiser.step()

    batches = epochs(records, 4, 8, generator(1))
    weights, loss = fit_point(network, start, batches, learning_rate=1e-2, weight_decay=weight_decay)

    reference = FlatNetwork(lambda: plain, seed=0).weights
    assert not torch.allclose(reference, start, atol=1e-3)
    torch.testing.assert_close(weights, reference, rtol=1e-3, atol=1e-5)
    assert loss == pytest.approx(expected_loss.item(), rel=1e-4)


def test_fit_point_leaves_its_start_alone_and_returns_a_copy():
    model, shape = CASES[0]
    network = FlatNetwork(lambda: build(model, shape, 4), seed=3)
    start = torch.zeros(network.size)
    batches = epochs(example(shape), 1, 8, generator(1))
    weights, _ = fit_point(network, start, batches, learning_rate=1e-2, weight_decay=0.0)
    assert torch.equal(start, torch.zeros(network.size))
    assert weights.data_ptr() != network.weights.data_ptr()
    assert torch.equal(weights, network.weights)


def test_fit_point_does_not_remember_an_earlier_fit():
    model, shape = CASES[0]
    network = FlatNetwork(lambda: build(model, shape, 4), seed=3)
    start = network.weights.clone()
    fits = [
        fit_point(network, start, epochs(example(shape), 2, 8, generator(1)), learning_rate=1e-2, weight_decay=0.0)
        for _ in range(2)
    ]
    assert torch.equal(fits[0][0], fits[1][0])
    assert fits[0][1] == fits[1][1]


def test_fit_point_over_nothing_changes_nothing():
    model, shape = CASES[0]
    network = FlatNetwork(lambda: build(model, shape, 4), seed=3)
    none = itertools.islice(epochs(example(shape), 1, 8, generator(1)), 0)
    start = network.weights.clone()
    weights, loss = fit_point(network, start, none, learning_rate=1e-2, weight_decay=0.0)
    assert torch.equal(weights, start)
    assert loss == 0.0
