"""What comes of a record depends on that record alone."""

import pytest
import torch

from fedbnn.base.one_by_one import one_by_one

GENERATOR = torch.Generator().manual_seed(0)
MATRIX = torch.randn(300, 70, generator=GENERATOR)
X = torch.randn(40, 300, generator=GENERATOR)


def tangled(x):
    """Other bits for other numbers of records, other places and other chance."""
    return ((x - x.mean(0) / 2) @ MATRIX * torch.rand(1)).exp().sum(1)


def test_each_record_has_the_same_bits_in_any_company():
    own = torch.cat([one_by_one(tangled, X[i : i + 1])[0] for i in range(40)])
    for count in range(41):
        assert torch.equal(torch.cat([torch.empty(0), *one_by_one(tangled, X[:count])]), own[:count])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.cat(one_by_one(tangled, X[order])), own[order])
    odd = torch.empty(40 * 301 + 1)[1:].view(40, 301)[:, 1:]  # rows that start at any address
    odd.copy_(X)
    assert torch.equal(torch.cat(one_by_one(tangled, odd)), own)
    assert torch.equal(torch.cat(one_by_one(tangled, X.T.contiguous().T)), own)


def test_every_record_comes_alone_at_the_same_place_on_one_thread():
    images, labels = torch.rand(5, 3, 4, 4).contiguous(memory_format=torch.channels_last), torch.arange(5)
    seen = one_by_one(
        lambda x, y: (x.shape, x.stride(), x.data_ptr(), y.shape, y.data_ptr(), torch.get_num_threads(), int(y)),
        images,
        labels,
    )
    assert [one[-1] for one in seen] == [0, 1, 2, 3, 4]
    assert len({one[:-1] for one in seen}) == 1
    assert seen[0][0] == (1, 3, 4, 4)
    assert seen[0][5] == 1


def test_a_record_that_is_written_over_is_whole_again_next_time():
    assert [float(one) for one in one_by_one(lambda x: x.mul_(2).sum(), torch.ones(3, 4))] == [8, 8, 8]


def test_chance_and_threads_are_put_back_also_after_an_error():
    def fail(x):
        torch.rand(3)
        raise RuntimeError

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    for function in (tangled, fail):
        try:
            one_by_one(function, X)
        except RuntimeError:
            assert function is fail
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), state)


def test_as_many_records_of_each():
    with pytest.raises(ValueError, match="shorter"):
        one_by_one(lambda x, y: 0, X, torch.zeros(39))
