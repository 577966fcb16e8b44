import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedbnn.privacy import gaussian_noise
from fedbnn.privacy import noise as module

SIZE = 200_000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# The system's randomness cannot be seeded: every bound is 6 standard errors, crossed once in 5e8 runs.
@pytest.mark.parametrize("generator", [None, seeded()], ids=["system", "seeded"])
@pytest.mark.parametrize("sd", [1.0, 0.01, 250.0])
def test_moments(generator, sd):
    noise = gaussian_noise(SIZE, sd, generator)
    assert noise.dtype == torch.float32
    scaled = noise.double() / sd
    assert abs(scaled.mean()) < 6 / math.sqrt(SIZE)
    assert abs(scaled.var() - 1) < 6 * math.sqrt(2 / SIZE)
    assert abs((scaled**3).mean()) < 6 * math.sqrt(15 / SIZE)
    assert abs((scaled**4).mean() - 3) < 6 * math.sqrt(96 / SIZE)


@pytest.mark.parametrize("generator", [None, seeded()], ids=["system", "seeded"])
def test_distribution(generator):
    assert stats.kstest(gaussian_noise(SIZE, 2.0, generator).numpy(), "norm", args=(0, 2.0)).pvalue > 1e-8


def test_neighbours_and_draws_are_independent():
    one, other = gaussian_noise(SIZE, 1.0), gaussian_noise(SIZE, 1.0)
    assert not torch.equal(one, other)
    assert abs((one * other).mean()) < 6 / math.sqrt(SIZE)
    assert abs((one[1:] * one[:-1]).mean()) < 6 / math.sqrt(SIZE)


def test_no_seed_repeats_the_systems_noise():
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 (the global seed is what must not matter)
        draws.append(gaussian_noise(64, 1.0))
    assert not (draws[0] == draws[1]).any()


def test_the_systems_noise_moves_no_generator():
    before = torch.get_rng_state()
    gaussian_noise(64, 1.0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_generator_repeats():
    assert torch.equal(gaussian_noise(64, 3.0, seeded(5)), gaussian_noise(64, 3.0, seeded(5)))
    assert torch.equal(gaussian_noise(64, 4.0, seeded(5)), 4 * gaussian_noise(64, 1.0, seeded(5)))
    assert not torch.equal(gaussian_noise(64, 3.0, seeded(5)), gaussian_noise(64, 3.0, seeded(6)))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_the_rarest_bits_give_finite_noise(byte, monkeypatch):
    monkeypatch.setattr(module.os, "urandom", lambda count: byte * count)
    uniforms = module.system_uniforms(3)
    assert ((uniforms > 0) & (uniforms < 1)).all()
    assert (gaussian_noise(3, 1.0).abs() - 11.5).abs().max() < 0.2


def test_scale_comes_from_the_same_bits(monkeypatch):
    fixed = module.os.urandom(16 * 100)
    monkeypatch.setattr(module.os, "urandom", lambda count: fixed[:count])
    torch.testing.assert_close(gaussian_noise(100, 7.0), 7 * gaussian_noise(100, 1.0))


def test_no_values():
    assert gaussian_noise(0, 1.0).shape == (0,)


@pytest.mark.parametrize("sd", [0.0, -1.0, math.nan, math.inf])
def test_no_noise_is_refused(sd):
    with pytest.raises(ValueError, match=f"sd is {sd}: must be"):
        gaussian_noise(3, sd)
