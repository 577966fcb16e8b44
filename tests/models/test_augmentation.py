"""Images mirrored and moved: against numpy, and in every method that trains on them."""

from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, Variant
from fedbnn.federation.sites import make_sites
from fedbnn.methods import FedBNN
from fedbnn.methods.noisy_sums import NoisySums
from fedbnn.models.augmentation import REACH, Augment, augmented
from fedbnn.models.training import Records, TrainingSettings, channels_last, epochs, steps
from tests.federation_sample import SMALL_METHODS, described, models_for, small_sites

WAYS: tuple[Augment, ...] = ("flip", "shift", "flip_shift")
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
SEEDS = st.integers(0, 10_000)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(shape: tuple[int, ...]) -> torch.Tensor:
    """Every pixel has a value of its own."""
    count = int(np.prod(shape))
    return channels_last(torch.randperm(count, generator=generator(count)).float().view(shape))


def moved(x: np.ndarray, down: int, right: int) -> np.ndarray:
    """What numpy makes of it: a window of the bordered image."""
    height, width = x.shape[2:]
    around = np.pad(x, ((0, 0), (0, 0), (REACH, REACH), (REACH, REACH)), mode="edge")
    return around[:, :, down : down + height, right : right + width]


MOVES = [(down, right) for down in range(2 * REACH + 1) for right in range(2 * REACH + 1)]


@given(SHAPES, SEEDS)
def test_flip_mirrors_some_images_and_leaves_the_others(shape, seed):
    x = images(shape)
    for before, after in zip(x.numpy(), augmented(x, "flip", generator(seed)).numpy(), strict=True):
        assert np.array_equal(after, before) or np.array_equal(after, before[:, :, ::-1])


def test_flip_mirrors_each_image_half_of_the_time_and_apart_from_the_others():
    x, rng = images((5, 1, 2, 3)), generator(0)
    mirrored = torch.stack([(augmented(x, "flip", rng) != x).flatten(1).any(1) for _ in range(1000)]).double()
    # Standard deviation of a share of 1000: 0.016; of a correlation: 0.032.
    assert (mirrored.mean(0) - 0.5).abs().max() < 0.08
    assert (torch.corrcoef(mirrored.T) - torch.eye(5)).abs().max() < 0.16


@given(SHAPES, SEEDS)
def test_shift_moves_all_images_alike_and_repeats_the_border(shape, seed):
    x = images(shape)
    found = augmented(x, "shift", generator(seed)).numpy()
    assert any(np.array_equal(found, moved(x.numpy(), *move)) for move in MOVES)


def test_every_move_is_made_equally_often():
    x, rng = images((1, 1, 5, 5)), generator(0)
    counts = Counter(float(augmented(x, "shift", rng)[0, 0, 2, 2]) for _ in range(1000))
    assert counts.keys() == {float(moved(x.numpy(), *move)[0, 0, 2, 2]) for move in MOVES}
    assert len(counts) == 25
    assert all(abs(count - 40) < 32 for count in counts.values())  # standard deviation 6.2


@given(SHAPES, SEEDS)
def test_flip_shift_mirrors_first_and_moves_then(shape, seed):
    x, one, other = images(shape), generator(seed), generator(seed)
    both = augmented(x, "flip_shift", one)
    assert torch.equal(both, augmented(augmented(x, "flip", other), "shift", other))
    assert torch.equal(one.get_state(), other.get_state())


@given(SHAPES, SEEDS, st.sampled_from(WAYS))
def test_values_are_never_new_the_layout_stays_and_the_generator_decides(shape, seed, how):
    x = images(shape)
    kept = x.clone()
    found, again = (augmented(x, how, generator(seed)) for _ in range(2))
    assert found.shape == x.shape
    assert found.dtype == x.dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, again)
    assert torch.equal(x, kept)
    for before, after in zip(x, found, strict=True):
        for channel in range(shape[1]):
            assert set(after[channel].flatten().tolist()) <= set(before[channel].flatten().tolist())


@pytest.mark.parametrize("how", WAYS)
def test_another_seed_gives_other_images(how: Augment):
    x = images((16, 3, 8, 8))
    found = [augmented(x, how, generator(seed)) for seed in range(4)]
    assert any(not torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("go", [epochs, steps])
@given(size=st.integers(1, 12), count=st.integers(0, 4), batch=st.integers(1, 13), seed=SEEDS)
def test_none_is_training_as_it_was(go, size, count, batch, seed):
    records, rng, plain = Records(images((size, 1, 3, 3)), torch.arange(size)), generator(seed), generator(seed)
    found, expected = list(go(records, count, batch, rng, "none")), list(go(records, count, batch, plain))
    assert torch.equal(rng.get_state(), plain.get_state())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.x, records.x[one.y])


def test_none_gives_the_very_same_records_and_draws_nothing():
    records, rng = Records(images((4, 1, 3, 3)), torch.arange(4)), generator(1)
    before = rng.get_state()
    assert records.varied("none", rng) is records
    assert torch.equal(rng.get_state(), before)


@pytest.mark.parametrize("go", [epochs, steps])
@given(size=st.integers(1, 12), batch=st.integers(1, 13), seed=SEEDS)
def test_labels_stay_with_their_images(go, size, batch, seed):
    """Each record is one flat colour, its label, which no mirror and no move can change."""
    colours = torch.arange(size, dtype=torch.float32).view(-1, 1, 1, 1).expand(size, 2, 3, 4)
    records = Records(channels_last(colours), torch.arange(size))
    for found in go(records, 3, batch, generator(seed), "flip_shift"):
        assert torch.equal(found.x, colours[found.y])


@pytest.mark.parametrize("how", WAYS)
def test_tables_are_refused_in_one_clear_sentence(how: Augment, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"{name}_{part}": rng.normal(size=(60, 4)) for name, part in [("x", "train"), ("x", "test")]}
    np.savez(tmp_path / "table.npz", **arrays, y_train=np.arange(60) % 3, y_test=np.arange(60) % 3)
    settings = DataSettings(source="npz", path=str(tmp_path / "table.npz"), alignment=10)
    data = federate(load_dataset(settings), settings, PartitionSettings(clients=2, classes_per_client=2), 0)
    with pytest.raises(UserError, match=rf"^training\.augment = '{how}' needs images .*\(4,\); set it to none$"):
        make_sites(data, training=TrainingSettings(augment=how))
    make_sites(data, training=TrainingSettings(augment="none"))


def seen(method: Method[Any, Any], augment: Augment) -> dict[str, torch.Tensor]:
    """States and predictions after the warm-up and a round."""
    federation = Federation(method, small_sites(2, models=models_for(method)[:2], augment=augment))
    federation.run(1)
    states = {f"client.{name}": tensor for name, tensor in federation.engine._host.states[0].tensors().items()}
    server = {f"server.{name}": tensor for name, tensor in federation.server.tensors().items()}
    scored = federation.evaluate()[0]
    x = federation.sites[0].evaluation.x[:20]
    return states | server | {str(name): federation.predict(0, x, variant=str(name)).logits for name in scored}


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_every_method_trains_on_varied_images(method: Method[Any, Any]):
    plain, flipped = seen(method, "none"), seen(method, "flip")
    assert plain.keys() == flipped.keys()
    differ = {name for name, tensor in plain.items() if not torch.equal(tensor, flipped[name])}
    if isinstance(method, NoisySums) and method.unit == "record":
        assert differ == {"fine_tuned"}  # what never leaves the client, and is trained without noise
    else:
        assert {name for name in plain if name in get_args(Variant)} <= differ


def test_the_prior_is_tuned_on_varied_alignment_points():
    """Local training is kept where it starts, so only the consensus can make a difference."""
    means = []
    for how in ("none", "flip"):
        site = small_sites(1, models=("mlp",), augment=how)[0].client  # type: ignore[arg-type]
        method = FedBNN(learning_rate=1e-12, prior_steps=3, network_every=1)
        phi_bar = torch.eye(10)[torch.arange(len(site.alignment)) % 10] * 5
        state = method.client_init(site)
        means.append(method.client_update(state, site, Message({"phi_bar": phi_bar}), 1, Stream((0,))).state.q.mean)
    assert (means[0] - means[1]).abs().max() > 1e-4
