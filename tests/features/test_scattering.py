import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.features import scattering as wavelets
from fedbnn.features.scattering import default_scales, features, littlewood_paley, maps, scattering


def images(count=2, channels=1, height=28, width=28, seed=0):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(seed))


def as_maps(x, scales, orientations=8):
    """[n, c, maps, rows, columns]"""
    block = 2**scales
    n, c, h, w = x.shape
    return scattering(x, scales, orientations).view(n, c, maps(scales, orientations), -(-h // block), -(-w // block))


@pytest.mark.parametrize(
    ("shape", "scales", "length"),
    [((1, 28, 28), 2, 81 * 7 * 7), ((3, 32, 32), 2, 243 * 8 * 8), ((1, 8, 8), 1, 9 * 4 * 4), ((1, 28, 28), 3, 3472)],
)
def test_numbers_of_features(shape, scales, length):
    found = scattering(torch.zeros(2, *shape), scales)
    assert found.shape == (2, length)
    assert found.dtype == torch.float32
    assert features(shape, scales, 8) == length


def test_default_scales():
    assert [default_scales(n, 32) for n in (8, 15, 16, 23, 24, 28, 32)] == [1, 1, 2, 2, 3, 3, 3]


@given(st.integers(1, 13), st.integers(1, 13), st.integers(1, 2), st.integers(1, 3), st.integers(1, 4))
def test_any_size(height, width, channels, scales, orientations):
    x = images(1, channels, height, width)
    found = scattering(x, scales, orientations)
    assert found.shape == (1, features((channels, height, width), scales, orientations))
    assert found.isfinite().all()


# The filters


def direct(u, wavelet):
    """Circular convolution by its definition, with a filter that is given in space."""
    height, width = u.shape
    result = torch.zeros(height, width, dtype=torch.complex128)
    for i in range(height):
        for k in range(width):
            result += u[i, k] * wavelet.roll((i, k), (0, 1))
    return result


def morlet_in_space(height, width, scale, angle, orientations):
    """The wavelet sampled on a grid around the origin, from its formula in space."""
    sigma, xi, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / orientations
    total = torch.zeros(2, height, width, dtype=torch.complex128)
    for i in range(-3, 4):
        for k in range(-3, 4):
            down = (torch.arange(height, dtype=torch.float64) + i * height).unsqueeze(1)
            across = torch.arange(width, dtype=torch.float64) + k * width
            along = across * math.cos(angle) + down * math.sin(angle)
            beside = down * math.cos(angle) - across * math.sin(angle)
            g = torch.exp(-(along**2 + (slant * beside) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
            total += torch.stack([g * torch.exp(1j * xi * along), g + 0j])
    wave, envelope = total
    return wave - wave.sum() / envelope.sum() * envelope


@pytest.mark.parametrize(("scale", "orientation"), [(0, 0), (0, 3), (1, 2)])
def test_a_wavelet_is_the_morlet_formula_and_is_convolved(scale, orientation):
    height, width, orientations = 16, 20, 8
    u = images(1, 1, height, width)[0, 0].double()
    angle = orientation * math.pi / orientations
    expected = direct(u, morlet_in_space(height, width, scale, angle, orientations)).abs()
    wavelet = wavelets._morlet(height, width, scale, orientations)[orientation]
    down, across = torch.fft.fftfreq(height).unsqueeze(1), torch.fft.fftfreq(width)
    back = torch.exp(-2j * math.pi * (2**scale - 1) / 2 * (down + across).double())  # to whole pixels again
    if scale == 0:
        torch.testing.assert_close(torch.fft.ifft2(torch.fft.fft2(u) * wavelet).abs(), expected)
    aligned = torch.fft.ifft2(torch.fft.fft2(u) * wavelet * back).abs()
    torch.testing.assert_close(aligned, expected, rtol=0, atol=2e-3 * float(expected.max()))


@pytest.mark.parametrize("scales", [1, 2])
def test_order_0_is_a_gaussian_mean_around_the_middle_of_each_block(scales):
    x = images(1, 1, 16, 16)
    block = 2**scales
    padded = torch.nn.functional.pad(x.double(), [block] * 4, mode="reflect")[0, 0]
    size = len(padded)
    place = torch.arange(size, dtype=torch.float64)
    found = as_maps(x, scales)[0, 0, 0]
    for row, column in [(0, 0), (1, 2), (-1, -1)]:
        weights = [
            torch.exp(-((place - (block * (index % len(found) + 1) + (block - 1) / 2)) ** 2) / (2 * (0.4 * block) ** 2))
            for index in (row, column)
        ]
        kernel = weights[0].unsqueeze(1) * weights[1]
        assert found[row, column] == pytest.approx(float((kernel * padded).sum() / kernel.sum()), abs=2e-3)


@pytest.mark.parametrize("scales", [1, 2, 3])
@pytest.mark.parametrize("orientations", [6, 8])
def test_the_filters_together_add_no_energy_and_lose_no_frequency(scales, orientations):
    low, waves = littlewood_paley(48, 40, scales, orientations)
    total = low + wavelets._gain(scales, orientations) ** 2 * waves
    assert total.max() <= 1.01
    assert total[0, 0] == pytest.approx(1, abs=1e-4)
    assert total.min() > 0.05
    assert waves[0, 0] == pytest.approx(0, abs=1e-20)


# The transform


@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([1.0, 3.0, 20.0]))
def test_energy_is_not_increased(seed, scales, smooth):
    x = images(1, 1, 32, 32, seed).double()
    across = torch.fft.fftfreq(32, dtype=torch.float64)
    decay = torch.exp(-(smooth**2) * (across.square() + across.square().unsqueeze(1)))
    x = torch.fft.ifft2(torch.fft.fft2(x) * decay).real
    x[:, :, torch.arange(32).sub(15.5).abs() > 8] = 0  # away from the border, where reflection would add to it
    x[:, :, :, torch.arange(32).sub(15.5).abs() > 8] = 0
    energy = scattering(x, scales).double().square().sum() * 4**scales
    assert energy <= 1.02 * x.square().sum()


@pytest.mark.parametrize("scales", [1, 2])
@pytest.mark.parametrize(("rows", "columns"), [(1, 0), (0, -1), (-1, 2)])
def test_moving_an_image_by_blocks_moves_its_maps(scales, rows, columns):
    block = 2**scales
    x = torch.zeros(2, 1, 48, 48)
    x[:, :, 20:28, 20:28] = images(2, 1, 8, 8)
    moved = as_maps(x.roll((rows * block, columns * block), (2, 3)), scales)
    torch.testing.assert_close(
        moved[..., 2:-2, 2:-2], as_maps(x, scales).roll((rows, columns), (3, 4))[..., 2:-2, 2:-2], rtol=1e-4, atol=1e-5
    )


def test_moving_an_image_by_a_pixel_changes_little():
    x = torch.zeros(8, 1, 32, 32)
    x[:, :, 10:22, 10:22] = images(8, 1, 12, 12)
    change = (scattering(x.roll(1, 3), 3) - scattering(x, 3)).norm() / scattering(x, 3).norm()
    pixels = (x.roll(1, 3) - x).norm() / x.norm()
    assert change < 0.25 * pixels


@pytest.mark.parametrize(("scales", "size"), [(1, 8), (2, 28), (2, 30), (3, 32)])
@pytest.mark.parametrize("orientations", [8, 4])
def test_turning_an_image_by_90_degrees_turns_its_maps_and_exchanges_orientations(scales, size, orientations):
    x = images(2, 2, size, size)
    expected = torch.rot90(as_maps(x, scales, orientations), 1, (3, 4))
    found = as_maps(torch.rot90(x, 1, (2, 3)), scales, orientations)
    half, start = orientations // 2, 1
    torch.testing.assert_close(found[:, :, 0], expected[:, :, 0], rtol=1e-4, atol=1e-5)
    for first in range(scales):
        part = slice(start, start + orientations)
        torch.testing.assert_close(found[:, :, part], expected[:, :, part].roll(half, 2), rtol=1e-4, atol=1e-5)
        start += orientations
        for _ in range(first + 1, scales):
            part = slice(start, start + orientations**2)
            pairs = expected[:, :, part].unflatten(2, (orientations, orientations)).roll((half, half), (2, 3))
            torch.testing.assert_close(found[:, :, part], pairs.flatten(2, 3), rtol=1e-4, atol=1e-5)
            start += orientations**2
    assert start == maps(scales, orientations)


def test_a_grating_excites_its_own_orientation():
    place = torch.arange(32.0)
    upright = torch.cos(0.75 * math.pi * place).expand(32, 32)  # varies along the rows: the wavelet at angle 0
    first = as_maps(upright.view(1, 1, 32, 32), 2)[0, 0, 1:9].mean((1, 2))
    assert first.argmax() == 0
    assert first[4] < 0.01 * first[0]


def test_channels_and_images_are_transformed_one_by_one(monkeypatch):
    x = images(5, 3, 10, 12)
    together = as_maps(x, 2)
    monkeypatch.setattr(wavelets, "_MOST_NUMBERS", 1)
    torch.testing.assert_close(as_maps(x, 2), together)
    for channel in range(3):
        torch.testing.assert_close(as_maps(x[:, channel : channel + 1], 2)[:, 0], together[:, channel])


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_a_broken_image_spoils_its_own_row_only(value):
    x = images(4)
    expected = scattering(x, 2)
    x[1, 0, 5, 5] = value
    kept = torch.tensor([0, 2, 3])
    assert torch.equal(scattering(x, 2)[kept], expected[kept])


def test_flat_images_have_a_mean_and_nothing_else():
    found = as_maps(torch.full((1, 1, 28, 28), 5.0), 2)[0, 0]
    torch.testing.assert_close(found[0], torch.full((7, 7), 5.0))
    assert found[1:].abs().max() < 1e-5


def test_no_images():
    assert scattering(torch.empty(0, 1, 8, 8), 1).shape == (0, 144)


@pytest.mark.parametrize("shape", [(3, 8), (2, 0, 8, 8), (2, 1, 0, 8)])
def test_what_is_not_an_image_is_refused(shape):
    with pytest.raises(ValueError, match="images have shape"):
        scattering(torch.zeros(*shape))


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="scales is 0"):
        scattering(torch.zeros(1, 1, 8, 8), 0)
