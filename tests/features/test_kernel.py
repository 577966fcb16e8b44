"""Kernel features against the kernel itself, and what a head on them can and cannot say."""

import dataclasses

import pytest
import torch
from sklearn.kernel_approximation import Nystroem
from torch import Tensor

from fedbnn.features import kernel
from fedbnn.features.kernel import KernelFeatures, kernel_features
from fedbnn.features.standard import StandardFeatures, standard_features

POINTS = 60


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def standard() -> StandardFeatures:
    return standard_features(images(POINTS, 0), "auto", False)


@pytest.fixture(scope="module")
def features(standard: StandardFeatures) -> KernelFeatures:
    return kernel_features(standard)


def by_hand(standard: StandardFeatures, x: Tensor, y: Tensor) -> Tensor:
    """exp(-|z - z'|^2 / 2 l^2), l half of the median distance between points of the alignment set."""
    z = standard.alignment
    median = torch.stack([(z[i] - z[j]).norm() for i in range(POINTS) for j in range(i)]).median()
    return torch.exp(-torch.cdist(x, y).square() / (2 * (0.5 * median) ** 2))


def lifted(features: KernelFeatures, z: Tensor) -> Tensor:
    """u, of standard features."""
    return kernel._kernel(z, features.points, features.precision) @ features.root


def test_products_before_centring_are_the_kernel(standard: StandardFeatures, features: KernelFeatures) -> None:
    """Between an alignment point and any input, exactly."""
    z, points = standard(images(9, 1)), standard.alignment
    u, a = lifted(features, z), lifted(features, points)
    torch.testing.assert_close(u @ a.T, by_hand(standard, z, points), rtol=0, atol=1e-6)
    torch.testing.assert_close(a @ a.T, by_hand(standard, points, points), rtol=0, atol=1e-6)


def test_distances_are_those_of_another_library(standard: StandardFeatures, features: KernelFeatures) -> None:
    """Between alignment points, and so up to one factor, as they are turned, centred and scaled."""
    oracle = Nystroem(kernel="rbf", gamma=features.precision, n_components=POINTS, random_state=0)
    expected = torch.from_numpy(oracle.fit_transform(standard.alignment.numpy()))
    found, expected = torch.cdist(features.alignment, features.alignment), torch.cdist(expected, expected)
    torch.testing.assert_close(found / found.norm(), expected / expected.norm(), rtol=0, atol=1e-6)


def test_they_are_centred_and_their_variances_add_up_to_their_number(features: KernelFeatures) -> None:
    h = features.alignment
    assert features.dimensions == POINTS - 1  # so many directions do as many points vary in
    assert float(h.mean(0).abs().max()) < 1e-9
    assert float(h.var(0, correction=0).sum()) == pytest.approx(features.dimensions)
    torch.testing.assert_close(features(images(POINTS, 0)), h, rtol=0, atol=1e-9)


def test_with_fewer_dimensions_the_largest_are_kept(
    standard: StandardFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directions of the kernel's largest eigenvalues, which no other choice of as many comes nearer to."""
    monkeypatch.setattr(kernel, "DIMENSIONS", 10)
    few = kernel._work_out(standard)
    assert few.dimensions == 10
    u = lifted(few, standard.alignment)
    values = torch.linalg.eigvalsh(by_hand(standard, *[standard.alignment] * 2))
    torch.testing.assert_close(torch.linalg.eigvalsh(u @ u.T)[-10:], values[-10:], rtol=1e-6, atol=0)


def test_of_a_large_alignment_set_some_points_carry_the_kernel(
    standard: StandardFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_MOST_POINTS", 20)
    found = kernel._work_out(standard)
    assert len(found.points) == 20
    assert found.dimensions <= 20
    assert found.alignment.shape == (POINTS, found.dimensions)
    assert float(found.alignment.mean(0).abs().max()) < 1e-9


def test_points_that_are_all_the_same_give_nothing(standard: StandardFeatures) -> None:
    alike = dataclasses.replace(standard, alignment=standard.alignment[:1].repeat(5, 1), digest="alike")
    found = kernel._work_out(alike)
    assert found.dimensions == 0
    assert found(images(3, 1)).shape == (3, 0)


def test_what_is_left_open_is_the_variance_of_a_gaussian_process(
    standard: StandardFeatures, features: KernelFeatures
) -> None:
    """k(z, z) - k(z, AD) k(AD, AD)^-1 k(AD, z): none at points of AD, all of it far away."""
    x = torch.cat([images(9, 1), images(POINTS, 0)[:3], 1e3 * images(3, 2)])
    points, z = standard.alignment, standard(x)
    between = by_hand(standard, z, points)
    expected = 1 - (between * torch.linalg.solve(by_hand(standard, points, points), between.T).T).sum(1)
    torch.testing.assert_close(features.open(x), expected, rtol=0, atol=1e-6)
    assert (features.open(x)[9:12] < 1e-6).all()
    assert (features.open(x)[12:] > 1 - 1e-9).all()


def test_far_from_all_points_nothing_tells_inputs_apart(features: KernelFeatures) -> None:
    far = features(1e3 * images(3, 2))
    torch.testing.assert_close(far, -features.centre.expand(3, -1), rtol=0, atol=1e-12)
