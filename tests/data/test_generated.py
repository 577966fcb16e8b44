"""Images made from chance: what each kind promises, and that they serve as alignment sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.generated import GENERATED, generated
from fedbnn.data.other_inputs import foreign_inputs

kinds = st.sampled_from(sorted(GENERATED))
shapes = st.tuples(st.integers(1, 3), st.integers(4, 12), st.integers(4, 12))


@given(kinds, shapes, st.integers(0, 2**31), st.integers(1, 4))
def test_images_lie_within_0_and_1_and_depend_on_the_seed_alone(kind, shape, seed, count):
    x = generated("field", kind, count, shape, seed)
    assert x.shape == (count, *shape)
    assert x.dtype == np.float32
    assert x.min() >= 0
    assert x.max() <= 1
    assert np.array_equal(generated("field", kind, count, shape, seed), x)
    assert not np.array_equal(generated("field", kind, count, shape, seed + 1), x)


@pytest.mark.parametrize("kind", GENERATED)
def test_more_images_begin_with_the_same_ones_and_no_two_are_alike(kind):
    many = generated("field", kind, 300, (1, 8, 8), 3)
    assert np.array_equal(generated("field", kind, 5, (1, 8, 8), 3), many[:5])
    assert len(np.unique(many.reshape(300, -1), axis=0)) == 300


def test_noise_has_a_spectrum_that_falls_as_a_power_of_frequency():
    """On logarithmic axes the mean of log power is a line, of slope -2 a with a between 0.5 and 2.5: -3 on average."""
    x = generated("field", "noise", 512, (1, 32, 32), 0).astype(np.float64)
    inner = x[((x > 0) & (x < 1)).all(axis=(1, 2, 3))]  # where nothing was cut off
    assert len(inner) > 50
    power = np.abs(np.fft.fft2(inner[:, 0])) ** 2
    frequency = np.hypot(np.fft.fftfreq(32)[:, None], np.fft.fftfreq(32)[None])
    band = (frequency > 0) & (frequency < 0.5)
    slopes = [np.polyfit(np.log(frequency[band]), np.log(one[band]), 1)[0] for one in power]
    assert min(slopes) > -5.3
    assert max(slopes) < -0.7
    assert np.ptp(slopes) > 2


def test_leaves_are_pieces_of_one_colour_each():
    x = generated("field", "leaves", 20, (3, 32, 32), 0)
    colours = [len(np.unique(one.reshape(3, -1), axis=1).T) for one in x]
    assert max(colours) <= 121
    assert min(colours) > 10
    flat = (np.diff(x, axis=3) == 0).all(axis=1).mean()
    assert flat > 0.5  # most neighbours lie on the same disc


def test_fractals_are_bright_on_dark_and_fill_the_frame():
    x = generated("field", "fractals", 50, (1, 28, 28), 0)
    dark = (x == 0).mean(axis=(1, 2, 3))
    assert dark.min() > 0.2
    assert dark.max() < 0.98
    assert (x[:, :, :2] == 0).all()  # a margin of a tenth
    assert (x.max(axis=(1, 2, 3)) >= 0.5).all()


@pytest.mark.parametrize("kind", GENERATED)
def test_they_are_alignment_sets_and_foreign_records(kind):
    settings = DataSettings(alignment=30, alignment_source=kind)
    data = federate(load_dataset(settings), settings, PartitionSettings(kind="iid", clients=3), seed=5)
    assert data.alignment_points == 30
    assert sum(map(len, data.client_indices)) == len(data.dataset.y_train)  # no record of a client is public
    assert data.alignment().mean() == pytest.approx(0, abs=1e-4)
    assert foreign_inputs(kind, DataSettings(test_records=7), (1, 8, 8)).shape == (7, 1, 8, 8)


def test_a_table_has_no_images():
    with pytest.raises(
        UserError, match=r"^data.alignment_source = 'noise' makes images, but .* shape \(4,\); for a ta"
    ):
        generated("data.alignment_source", "noise", 3, (4,), 0)


def test_a_typing_error_is_told_the_kind_it_meant():
    settings = DataSettings(alignment=30, alignment_source="fractal")
    with pytest.raises(UserError, match=r"'fractal' is neither an .npz file nor one of: .*fractals; did you mean"):
        federate(load_dataset(settings), settings, PartitionSettings(kind="iid", clients=3), seed=5)
