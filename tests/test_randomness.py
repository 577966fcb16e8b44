import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.randomness import Stream

paths = st.lists(st.integers(0, 50) | st.text(max_size=5), max_size=5).map(tuple)


@given(paths, paths)
def test_another_name_is_another_stream(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert (Stream(one).seed == Stream(other).seed) == (one == other)
    assert 0 <= Stream(one).seed < 2**63


def test_children_extend_the_path_and_repeat_themselves() -> None:
    stream = Stream((7, "update")).child(3, "order")
    assert stream == Stream((7, "update", 3, "order"))
    assert torch.equal(torch.rand(4, generator=stream.torch()), torch.rand(4, generator=stream.torch()))
    assert stream.numpy().integers(1 << 30) == stream.numpy().integers(1 << 30)


def test_seeds_are_pinned_so_that_results_stay_reproducible_across_versions() -> None:
    assert Stream((0, "update", 1, 2)).seed == 2020222217863554093
