import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from fedbnn.features import feature_map, maps, scattering_map
from fedbnn.features import scattering as wavelets
from fedbnn.features.feature_map import unit_rows
from fedbnn.features.maps import KINDS, fit_features
from fedbnn.features.scattering_map import ScatteringMap


def images(count=40, channels=1, size=8, seed=0):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


def table(count=40, columns=5, seed=0):
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.tensors().values(), other.tensors().values(), strict=True))


def lengths(phi):
    return phi.double().norm(dim=1)


MAPS = {"scattering": fit_features(images(), dimensions=20), "fourier": fit_features(table(), dimensions=21)}
INPUTS = {"scattering": images, "fourier": table}


# Choice and shape


@pytest.mark.parametrize(
    ("records", "scattered"),
    [
        (images(5), True),
        (images(5, 3, 12), True),
        (images(5, 1, 7), False),
        (table(5), False),
        (torch.zeros(5, 2, 3), False),
    ],
)
def test_images_are_scattered_and_anything_else_is_a_table(records, scattered):
    phi = fit_features(records, dimensions=11)
    assert isinstance(phi, ScatteringMap) is scattered
    assert phi.dimensions == 11
    assert phi(records).shape == (5, 11)
    assert phi(records[:0]).shape == (0, 11)


def test_scales_follow_from_the_size_of_images():
    phi = fit_features(images(6, size=16), dimensions=8)
    assert phi.layout.tolist() == [1, 16, 16, 2, 8]
    assert phi(images(2, size=16)).shape == (2, 8)


def test_images_can_be_treated_as_a_table():
    phi = fit_features(images(), "fourier", dimensions=12)
    assert not isinstance(phi, ScatteringMap)
    assert phi(images()).shape == (40, 11)  # pairs and a constant


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_another_shape_are_refused(kind):
    with pytest.raises(ValueError, match="records have shape"):
        MAPS[kind](images(2, 2))


@pytest.mark.parametrize(
    ("records", "kind", "dimensions"),
    [
        (torch.empty(0, 3), "auto", 10),
        (torch.full((2, 3), math.nan), "auto", 10),
        (table(), "scattering", 10),
        (table(), "auto", 2),
        (torch.zeros(4), "auto", 10),
        (images() * 1e37, "auto", 10),
    ],
)
def test_what_cannot_be_fitted_is_refused(records, kind, dimensions):
    with pytest.raises(ValueError, match=r"alignment set|scattering needs images|dimensions is"):
        fit_features(records, kind, dimensions)


# Norms


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(st.floats(-45, 38).map(lambda power: 10.0**power), st.integers(0, 1000))
def test_no_row_is_longer_than_one(kind, scale, seed):
    phi = MAPS[kind](INPUTS[kind](3, seed=seed) * scale)
    assert phi.dtype == torch.float32
    assert phi.isfinite().all()
    assert (lengths(phi) <= 1).all()
    if scale < 1e15:
        torch.testing.assert_close(lengths(phi), torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_broken_record_becomes_a_row_of_zeros_and_leaves_the_others_alone(kind, value):
    x = INPUTS[kind](6)
    expected = MAPS[kind](x)
    x[2].view(-1)[3] = value
    phi = MAPS[kind](x)
    assert torch.equal(phi[2], torch.zeros(phi.shape[1]))
    kept = torch.arange(6) != 2
    torch.testing.assert_close(phi[kept], expected[kept])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1e-45, 3.4e38, -3.4e38])
def test_constant_records(kind, value):
    phi = MAPS[kind](torch.full_like(INPUTS[kind](2), value))
    assert phi.isfinite().all()
    assert (lengths(phi) <= 1).all()


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=12, max_size=12))
def test_unit_rows_of_anything(numbers):
    rows = unit_rows(torch.tensor(numbers).view(3, 4))
    assert rows.isfinite().all()
    assert (lengths(rows) <= 1).all()
    for row, given_row in zip(rows, torch.tensor(numbers).view(3, 4), strict=True):
        usable = given_row.isfinite().all() and given_row.any()
        assert row.double().norm() == pytest.approx(1.0 if usable else 0.0, abs=2e-6)


def test_unit_rows_of_many_random_rows_never_exceed_one():
    rows = torch.randn(20_000, 100, generator=torch.Generator().manual_seed(0))
    assert lengths(unit_rows(rows)).max() <= 1
    assert unit_rows(rows).norm(dim=1).max() <= 1  # in single precision too


# Alignment sets that are hard to fit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_fewer_records_than_dimensions(kind, count):
    phi = fit_features(INPUTS[kind](count), kind, dimensions=31)
    assert phi.dimensions == 31
    found = phi(INPUTS[kind](7, seed=1))
    torch.testing.assert_close(lengths(found), torch.ones(7, dtype=torch.float64), rtol=1e-5, atol=0)
    if kind == "scattering":
        assert int(phi.basis.any(0).sum()) == count - 1


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_are_all_the_same(kind):
    phi = fit_features(INPUTS[kind](1).expand(9, *INPUTS[kind](1).shape[1:]), kind, dimensions=11)
    found = phi(INPUTS[kind](7, seed=1))
    torch.testing.assert_close(lengths(found), torch.ones(7, dtype=torch.float64), rtol=1e-5, atol=0)


def test_blank_images():
    phi = fit_features(torch.zeros(9, 1, 8, 8), dimensions=11)
    assert not phi.basis.any()
    assert (phi(images(3))[:, -1] > 0.99).all()


@pytest.mark.parametrize("value", [0.0, 7.0, 1e30, 1e-30])
def test_a_constant_column_is_ignored(value):
    x = table()
    x[:, 2] = value
    phi = fit_features(x, dimensions=21)
    assert not phi.basis[2].any()
    moved = x.clone()
    moved[:, 2] = value + 1
    torch.testing.assert_close(phi(moved), phi(x))


def test_units_of_a_column_do_not_matter():
    x = table()
    units = torch.tensor([1e-6, 1.0, 1e3, 1e6, 2.0])
    one, other = fit_features(x, dimensions=21), fit_features(x * units + units, dimensions=21)
    torch.testing.assert_close(one(x), other(x * units + units), rtol=0, atol=1e-4)


# What the maps are


def test_components_are_uncorrelated_and_half_whitened():
    x = images(200)
    phi = fit_features(x, dimensions=20)
    z = phi.coordinates(x).double()
    centred = z - z.mean(0)
    covariance = centred.T @ centred / len(z)
    variances = covariance.diagonal()
    torch.testing.assert_close(covariance, variances.diag(), rtol=0, atol=1e-4 * float(variances[0]))
    assert (variances.diff() <= 0).all()
    found = wavelets.scattering(x, 1).double()
    found = (found / (0.1 * found.abs().mean())).asinh()
    spread = found.std(0, correction=0)
    scaled = (found - found.mean(0)) / (spread + 0.1 * spread.mean())
    sds = torch.linalg.svdvals(scaled)[:19] / math.sqrt(200)
    torch.testing.assert_close(variances, sds, rtol=1e-3, atol=0)  # sd^2 divided by (sqrt sd)^2
    assert float(phi.constant) ** 2 == pytest.approx(float(variances.sum()), rel=1e-4)


@pytest.mark.parametrize("count", [30, 300])
def test_both_ways_to_principal_directions_agree_with_a_singular_value_decomposition(count):
    centred = table(count, 60) * torch.linspace(3, 0.1, 60)
    centred -= centred.mean(0)
    directions, sds = scattering_map._principal(centred, 7)
    _, values, vectors = torch.linalg.svd(centred.double(), full_matrices=False)
    torch.testing.assert_close(sds.double(), values[:7] / math.sqrt(count), rtol=1e-4, atol=0)
    cosines = (directions.double() * vectors[:7].T).sum(0)
    torch.testing.assert_close(cosines.abs(), torch.ones(7, dtype=torch.float64), rtol=1e-3, atol=0)
    assert (directions.gather(0, directions.abs().argmax(0, keepdim=True)) > 0).all()


def test_inner_products_of_fourier_features_are_the_kernel():
    x = table(60)
    phi = fit_features(x, dimensions=20_001)
    standard = (x - x.mean(0)) / x.std(0, correction=0)
    distances = torch.cdist(standard, standard)
    length = torch.nn.functional.pdist(standard).median()
    kernel = torch.exp(-distances.square() / (2 * length**2))
    found = phi(x)
    torch.testing.assert_close(2 * found @ found.T - 1, kernel, rtol=0, atol=0.05)  # the constant has half the square


@pytest.mark.parametrize("kind", KINDS)
def test_a_linear_head_can_read_a_curved_boundary(kind):
    """Rings in a table, upright and level stripes in images: nothing that a linear function of the input separates."""
    if kind == "fourier":
        x = table(600, 2)
        label = x.norm(dim=1) > 1.2
    else:
        generator = torch.Generator().manual_seed(0)
        shift = torch.rand(600, 1, 1, 1, generator=generator) * 6
        stripes = torch.sin(2.2 * torch.arange(8.0).expand(600, 1, 8, 8) + shift)
        label = torch.rand(600, generator=generator) > 0.5
        x = torch.where(label.view(-1, 1, 1, 1), stripes, stripes.mT)
        x = x + 0.5 * torch.randn(x.shape, generator=generator)
    phi = fit_features(x[:200], kind, dimensions=41)
    target = 2 * label.double() - 1
    seen, unseen = phi(x[:300]).double(), phi(x[300:]).double()
    head = torch.linalg.solve(seen.T @ seen + 1e-2 * torch.eye(seen.shape[1]), seen.T @ target[:300])
    assert ((unseen @ head > 0) == label[300:]).double().mean() > 0.93


# Determinism, and nothing but the alignment set


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_records_and_seed_give_the_same_bits(kind):
    x = INPUTS[kind](50)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one = fit_features(x, kind, 21, seed=3)
        threads = torch.get_num_threads()
        state = torch.get_rng_state()
        torch.manual_seed(2)
        other = fit_features(x.clone(), kind, 21, seed=3)
        torch.manual_seed(1)
        assert torch.equal(torch.get_rng_state(), state)  # fitting leaves the global generator alone
        assert torch.get_num_threads() == threads
    assert same(one, other)
    assert not same(one, fit_features(INPUTS[kind](50, seed=9), kind, 21, seed=3))


def test_the_seed_draws_the_frequencies():
    assert not same(fit_features(table(), seed=0), fit_features(table(), seed=1))


@pytest.mark.parametrize("kind", KINDS)
def test_phi_of_a_record_does_not_depend_on_the_others(kind, monkeypatch):
    x = INPUTS[kind](9)
    together = MAPS[kind](x)
    assert torch.equal(MAPS[kind](x[4:5]), together[4:5])
    for size in (256, 2):  # those of public ones do, in their last bits
        monkeypatch.setattr(feature_map, "_BATCH", size)
        torch.testing.assert_close(MAPS[kind].batched(x), together, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_applying_a_map_changes_nothing(kind):
    x = INPUTS[kind](9)
    before, tensors = x.clone(), {name: t.clone() for name, t in MAPS[kind].tensors().items()}
    MAPS[kind](x)
    assert torch.equal(x, before)
    assert all(torch.equal(tensors[name], t) for name, t in MAPS[kind].tensors().items())


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_part_of_a_large_alignment_set_is_looked_at(kind, monkeypatch):
    monkeypatch.setattr(maps, "_MOST_POINTS", 10)
    x = INPUTS[kind](50)
    phi = fit_features(x, kind, 31)
    assert same(phi, fit_features(x, kind, 31))
    if kind == "scattering":
        assert int(phi.basis.any(0).sum()) == 9


# Tensors


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind):
    tensors = load(save(MAPS[kind].tensors()))
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    back = KINDS[kind].from_tensors(tensors)
    assert same(back, MAPS[kind])
    assert torch.equal(back(INPUTS[kind](4)), MAPS[kind](INPUTS[kind](4)))


def hostile():
    good = MAPS["scattering"].tensors()
    yield "names", {**good, "more": good["centre"]}
    yield "missing", {name: good[name] for name in ("layout", "centre", "basis", "unit")}
    yield "unit", {**good, "unit": torch.ones(1, 1)}
    yield "double", {**good, "basis": good["basis"].double()}
    yield "nan", {**good, "basis": good["basis"] * math.nan}
    yield "rows", {**good, "basis": good["basis"][:-1]}
    yield "centre", {**good, "centre": good["centre"][:-1]}
    yield "constant", {**good, "constant": torch.ones(2)}
    yield "layout", {**good, "layout": torch.ones(3)}
    yield "fraction", {**good, "layout": good["layout"] + 0.5}
    yield "scales", {**good, "layout": torch.tensor([1.0, 8.0, 8.0, 30.0, 8.0])}


@pytest.mark.parametrize(
    ("name", "tensors"), list(hostile()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_tensors_that_are_not_a_maps_are_refused(name, tensors):
    with pytest.raises(ValueError, match="feature map"):
        ScatteringMap.from_tensors(tensors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e30, 3e38])
def test_norms_hold_whatever_numbers_a_map_was_sent_with(kind, factor):
    sent = {name: t if name == "layout" else (t.sign() * factor) for name, t in MAPS[kind].tensors().items()}
    phi = KINDS[kind].from_tensors(sent)(INPUTS[kind](5))
    assert phi.isfinite().all()
    assert (lengths(phi) <= 1).all()
