"""Features for heads: their scale, images and their mirror images, how far is far, and what is kept on disk."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.features import scattering as wavelets
from fedbnn.features import standard as module
from fedbnn.features.feature_store import FOLDER, on_disk
from fedbnn.features.maps import fit_features
from fedbnn.features.standard import StandardFeatures, standard_features


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "_seen", {})
    monkeypatch.delenv(FOLDER, raising=False)


def images(count: int, *shape: int, seed: int = 0) -> Tensor:
    """Smooth blobs, each elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    channels, height, width = shape
    down, across = torch.arange(height).view(-1, 1) / height, torch.arange(width) / width
    where = torch.rand(count, channels, 2, 1, 1, generator=generator)
    blobs = torch.exp(-20 * ((down - where[:, :, 0]) ** 2 + (across - where[:, :, 1]) ** 2))
    return blobs + 0.05 * torch.randn(count, *shape, generator=generator)


def table(count: int, columns: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, columns, generator=generator) * torch.arange(1, columns + 1) + 5


KINDS = [
    (images(40, 1, 8, 8), "auto", False),
    (images(40, 3, 16, 12), "auto", True),
    (images(40, 1, 8, 8), "fourier", True),
    (images(30, 1, 5, 5), "auto", True),  # too small for scattering
    (table(50), "auto", False),
    (table(50), "auto", True),
]
every_kind = pytest.mark.parametrize(
    ("alignment", "kind", "mirrored"),
    KINDS,
    ids=["scattering", "mirrored", "fourier", "tiny", "table", "flipped table"],
)


@every_kind
def test_on_the_alignment_set_variances_add_up_to_the_number_of_coordinates(
    alignment: Tensor, kind: str, mirrored: bool
) -> None:
    found = standard_features(alignment, kind, mirrored)
    z = found.alignment
    assert z.dtype == torch.float64
    assert z.shape == (len(alignment), found.dimensions)
    torch.testing.assert_close(z.mean(0), torch.zeros(found.dimensions).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(z.square().mean(0).sum(), torch.tensor(found.dimensions).double())
    torch.testing.assert_close(found(alignment), z)


def test_half_of_a_tables_variance_is_that_of_its_columns_alike() -> None:
    found = standard_features(table(50), "auto", False)
    assert found.dimensions == 6 + 200
    variances = found.alignment.square().mean(0)
    torch.testing.assert_close(variances[:6], torch.full((6,), 103 / 6).double())
    torch.testing.assert_close(variances[6:].sum(), torch.tensor(103.0).double())


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_units_of_a_column_do_not_matter_to_it(shift: float, factor: float) -> None:
    x = table(30).double()
    z, other = (standard_features(t, "auto", False).alignment[:, 0] for t in (x, x * factor + shift))
    torch.testing.assert_close(z, other, rtol=1e-5, atol=1e-5)


def test_a_constant_column_counts_for_nothing() -> None:
    x = table(40)
    x[:, 2] = 3.14
    found = standard_features(x, "auto", False)
    assert found.alignment[:, 2].eq(0).all()
    assert found.alignment.isfinite().all()
    torch.testing.assert_close(found.alignment.square().mean(0).sum(), torch.tensor(found.dimensions).double())
    moved = x[:5].clone()
    moved[:, 2] += 100
    assert found(moved)[:, 2].eq(0).all()


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("shape", [(4,), (1, 8, 8), (1, 5, 5)], ids=str)
def test_a_set_in_which_nothing_varies_gives_zeros(shape: tuple[int, ...], count: int) -> None:
    alignment = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).repeat(count, *[1] * len(shape))
    found = standard_features(alignment, "auto", False)
    assert found.alignment.eq(0).all()
    strange = found(alignment + 1)
    assert strange.isfinite().all()
    assert found.novelty(strange).eq(0).all()  # who knows what is usual?


# Mirror images


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((1, 8, 8), "auto"), ((3, 16, 12), "auto"), ((1, 28, 28), "auto"), ((1, 8, 8), "fourier"), ((2, 6, 7), "fourier")],
    ids=str,
)
def test_an_image_and_its_mirror_image_have_the_same_features(shape: tuple[int, int, int], kind: str) -> None:
    alignment, x = images(40, *shape), images(9, *shape, seed=1)
    found, plain = standard_features(alignment, kind, True), standard_features(alignment, kind, False)
    torch.testing.assert_close(found(x), found(x.flip(3)), rtol=0, atol=2e-3)
    assert float((plain(x) - plain(x.flip(3))).abs().max()) > 0.3


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 16), (1, 16, 16), (2, 12, 10), (1, 28, 28), (1, 7, 6)])
@pytest.mark.parametrize("orientations", [4, 8, 5])
def test_mirroring_an_image_reorders_its_scattering_features(shape: tuple[int, int, int], orientations: int) -> None:
    x, scales = images(3, *shape), wavelets.default_scales(*shape[1:])
    order = wavelets.mirrored(shape, scales, orientations)
    plain = wavelets.scattering(x, scales, orientations)
    assert sorted(order.tolist()) == list(range(plain.shape[1]))
    assert torch.equal(order[order], torch.arange(plain.shape[1]))  # twice mirrored is as before
    torch.testing.assert_close(wavelets.scattering(x.flip(3), scales, orientations), plain[:, order], rtol=0, atol=1e-5)
    assert float((plain - plain[:, order]).abs().max()) > 1e-2


def test_coordinates_are_the_mean_over_both_views() -> None:
    """Of the scattering map's own, whose directions are found among the means."""
    alignment, x = images(40, 1, 8, 8), images(9, 1, 8, 8, seed=1)
    found = fit_features(alignment, "scattering", 20, mirrored=True)
    plain = fit_features(torch.cat([alignment, alignment.flip(3)]), "scattering", 20)
    assert found.dimensions == plain.dimensions
    torch.testing.assert_close(found.coordinates(x), found.coordinates(x.flip(3)), rtol=0, atol=1e-4)


# How far is far


@every_kind
def test_hardly_more_than_one_in_a_hundred_alignment_points_is_beyond_the_usual(
    alignment: Tensor, kind: str, mirrored: bool
) -> None:
    found = standard_features(alignment, kind, mirrored)
    beyond = found.novelty(found.alignment) > 1
    assert int(beyond.sum()) <= 1 + 0.02 * len(alignment)


@pytest.mark.parametrize("points", [200, 400, 800])
def test_one_in_a_hundred_digits_that_the_features_have_not_seen_is_beyond_the_usual(points: int) -> None:
    """However few the points are against the features that are fitted to them."""
    data = DataSettings(alignment=points)
    dealt = federate(load_dataset(data), data, PartitionSettings(clients=2), 0)
    found = standard_features(torch.from_numpy(dealt.alignment()), "auto", False)
    novelty = found.novelty(found(torch.from_numpy(dealt.evaluation("test")[0])))
    assert 0.002 < float((novelty > 1).double().mean()) < 0.03
    noise = torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert float(found.novelty(found(noise)).min()) > 2


def test_a_point_is_measured_as_if_it_were_left_out() -> None:
    """Mean and variances worked out anew without it, in the coordinates that are uncorrelated then."""
    z = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = z - z.mean(0)
    z = z @ torch.linalg.eigh(z.T @ z)[1]  # principal components
    found = module._distances(z, z, left_out=True)[:, -1]
    for i in range(30):
        others = z[torch.arange(30) != i]
        off = z[i] - others.mean(0)
        covariance = torch.cov(others.T, correction=0)
        torch.testing.assert_close(found[i], off @ torch.linalg.solve(covariance, off) / 4)


def test_where_points_are_as_few_as_features_the_rest_tells_what_is_far() -> None:
    found = standard_features(images(20, 1, 8, 8), "auto", False)
    assert found.usual.isfinite().all()
    assert float(found.novelty(found(images(200, 1, 8, 8, seed=3))).max()) < 1


def test_one_in_a_hundred_of_a_large_set_and_few_more_of_other_records_like_it() -> None:
    found = standard_features(table(2000), "auto", False)
    assert float((found.novelty(found.alignment) > 1).double().mean()) == pytest.approx(0.01, abs=0.0015)
    others = found.novelty(found(table(2000, seed=1)))
    assert 0.002 < float((others > 1).double().mean()) < 0.03


def test_the_farther_the_newer() -> None:
    found = standard_features(table(300), "auto", False)
    x = table(1, seed=5).repeat(6, 1)
    x[:, 1] = 5 + 2 * torch.tensor([0.0, 4.0, 8.0, 20.0, 200.0, 1e4])  # in standard deviations
    novelty = found.novelty(found(x))
    assert (novelty[1:] > novelty[:-1]).all()
    assert novelty[0] < 1
    assert novelty[3] > 2


def test_noise_is_beyond_images_and_another_record_of_them_is_not() -> None:
    found = standard_features(images(200, 1, 8, 8), "auto", False)
    strange = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    assert (found.novelty(found(strange)) > 1).all()
    assert float((found.novelty(found(images(200, 1, 8, 8, seed=3))) > 1).double().mean()) < 0.05


@pytest.mark.parametrize("size", [1e5, 1e9, 1e20, 1e30])
def test_a_value_far_beyond_all_others_stays_a_number_that_equations_can_bear(size: float) -> None:
    found = standard_features(table(60), "auto", False)
    x = table(3, seed=1)
    x[0] = size * torch.tensor([1.0, -1.0, 1.1, 0.7, 1.0, 1.0])
    z = found(x)
    assert z.isfinite().all()
    assert float(z.abs().max()) <= 1e4
    assert found.novelty(z)[0] > 1e3
    torch.testing.assert_close(z[1:], found(x[1:]))


def test_features_of_the_wrong_kind_are_told_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^privacy\.features = 'scattering': scattering needs images") as caught:
        standard_features(table(5), "scattering", False)
    assert "\n" not in str(caught.value)


# What is kept


def counted(found: StandardFeatures, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records are mapped from now on, call by call."""
    asked: list[int] = []
    kind = type(found.map)
    real = kind.coordinates
    monkeypatch.setattr(kind, "coordinates", lambda self, x: asked.append(len(x)) or real(self, x))  # type: ignore[func-returns-value]
    return asked


def test_features_of_records_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = standard_features(table(50), "auto", False)
    assert standard_features(table(50), "auto", False) is found
    assert standard_features(table(50), "auto", True) is not found
    asked = counted(found, monkeypatch)
    first = found(table(3, seed=1))
    assert found(table(3, seed=1)) is first
    found(table(4, seed=1))
    assert asked == [3, 4]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    for value in (None, ""):
        if value is not None:
            monkeypatch.setenv(FOLDER, value)
        assert torch.equal(on_disk("name", lambda: torch.ones(2)), torch.ones(2))
        assert torch.equal(on_disk("name", lambda: torch.zeros(2)), torch.zeros(2))  # made anew
    standard_features(table(50), "auto", False)(table(3))
    assert list(tmp_path.iterdir()) == []


def test_what_was_worked_out_is_found_on_disk_bit_for_bit(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    without = standard_features(table(50), "auto", False)
    expected = without.alignment, without(table(3, seed=1))
    monkeypatch.setenv(FOLDER, str(tmp_path / "deep" / "folder"))
    for again in (False, True):
        monkeypatch.setattr(module, "_known", {})
        monkeypatch.setattr(module, "_seen", {})
        found = standard_features(table(50), "auto", False)
        asked = counted(found, monkeypatch)
        assert torch.equal(found(table(3, seed=1)), expected[1])
        assert torch.equal(found.alignment, expected[0])
        assert asked == ([] if again else [3])
    names = sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir())
    assert len(names) == 1  # of the records; the alignment set's are worked out by every process
    assert all(name.endswith(".safetensors") for name in names)


@pytest.mark.parametrize("spoilt", [b"", b"\x00" * 40, b"not a tensor at all"])
def test_a_broken_file_is_made_again(tmp_path, monkeypatch, spoilt):  # type: ignore[no-untyped-def]
    monkeypatch.setenv(FOLDER, str(tmp_path))
    made = torch.arange(6.0).view(2, 3)
    assert torch.equal(on_disk("name", lambda: made.T), made.T)  # however it lies in memory
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    for content in (spoilt, whole[:-3]):
        file.write_bytes(content)
        assert torch.equal(on_disk("name", lambda: made.T), made.T)
        assert file.read_bytes() == whole
        assert list(tmp_path.iterdir()) == [file]

    def unasked() -> Tensor:
        raise AssertionError("made again")

    assert torch.equal(on_disk("name", unasked), made.T)
