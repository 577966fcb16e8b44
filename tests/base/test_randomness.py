import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.randomness import Stream, repeatable

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


def test_a_device_is_handed_down_and_has_no_part_in_the_seed() -> None:
    stream = Stream((7,), torch.device("meta")).child("a")
    assert stream.device == torch.device("meta")
    assert stream.seed == Stream((7, "a")).seed
    assert stream.on_cpu() == Stream((7, "a"))
    assert Stream((7,)).torch().device == torch.device("cpu")


def test_what_is_repeatable_leaves_torch_as_it_was() -> None:
    cudnn, state, threads = torch.backends.cudnn, torch.get_rng_state(), torch.get_num_threads()
    before = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
    draws = []
    for _ in range(2):
        with repeatable(Stream((7,))):
            draws.append(torch.rand(3))
            assert torch.get_num_threads() == 1
            assert cudnn.deterministic
            assert not cudnn.allow_tf32
    assert torch.equal(*draws)
    assert before == (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
