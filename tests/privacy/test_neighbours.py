"""One record more or less moves a sum by that record's own contribution, whatever features and heads are."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch

from fedbnn.features import FeatureMap
from fedbnn.features.maps import fit_features
from fedbnn.privacy.head import Shape, contributions
from fedbnn.privacy.sums import grid_sum

CLASSES = 3


@dataclass(frozen=True)
class Own(FeatureMap):
    """A user's: products of matrices, whose kernels go by the number of records, and a mean over all of them."""

    basis: torch.Tensor

    @classmethod
    def fit(cls, alignment, dimensions, generator):
        return cls(torch.ones(1), torch.randn(alignment.shape[1], dimensions - 1, generator=generator))

    @property
    def shape(self):
        return (len(self.basis),)

    @property
    def dimensions(self):
        return self.basis.shape[1] + 1

    def coordinates(self, x):
        z = (x @ self.basis).tanh() @ self.basis.T
        return (z - 1e-3 * z.mean(0)) @ self.basis


def random(count, *shape, seed=0):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


EDGES = [*range(1, 20), 63, 64, 65, 127, 128, 129, *range(255, 261), 300]
CASES = {
    "own": (f"{__name__}:Own", (40,), range(1, 301)),
    "fourier": ("fourier", (5,), [*range(20, 60), *EDGES]),
    "scattering": ("scattering", (1, 8, 8), EDGES),
}


def total_of(phi, x, y, head):
    return grid_sum(contributions(phi(x), y, head, Shape(phi.dimensions, CLASSES)))


def hostile(phi, x, size):
    """The head that tells most about what 259 records and 260 of them leave in the last bits of the 259th's features:
    blind to the features of the last chunk, and steep along their difference where records are mapped in batches.
    """
    less, more = phi.batched(x[:259]).double()[256:], phi.batched(x[:260]).double()[256:259]
    difference = more - less
    apart = torch.linalg.lstsq(
        torch.cat([(less + more) / 2, difference]), torch.cat([torch.zeros(3, 1), torch.ones(3, 1)]).double()
    ).solution
    if not difference.any():  # a library without such differences: any other head will do
        apart = torch.randn(phi.dimensions, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    steep = torch.cat([20 * apart, -20 * apart, torch.zeros_like(apart)], 1)
    return steep * min(1.0, size / float(steep.abs().max()))


def within(difference, sensitivity):
    return sum(n * n for n in difference.tolist()) <= (Fraction(sensitivity) * 2**32) ** 2


def records(kind, shape, count, dimensions=9):
    x, y = random(count, *shape), torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(1))
    y[-4:] = 0  # what they leave in their last bits then adds up
    return x, y, fit_features(random(60, *shape, seed=2), kind, dimensions)


@pytest.mark.parametrize("name", CASES)
def test_records_added_removed_and_permuted(name):
    kind, shape, counts = CASES[name]
    x, y, phi = records(kind, shape, 300)
    features = phi(x)
    head = hostile(phi, x, 1e9)
    own = torch.stack([total_of(phi, x[i : i + 1], y[i : i + 1], head) for i in range(300)])
    assert all(within(one, Shape(phi.dimensions, CLASSES).sensitivity) for one in own)
    for count in counts:
        assert torch.equal(phi(x[:count]), features[:count]), count
    for count in EDGES:
        assert torch.equal(total_of(phi, x[:count], y[:count], head), own[:count].sum(0)), count
    order = torch.randperm(300, generator=torch.Generator().manual_seed(4))[:293]
    assert torch.equal(total_of(phi, x[order], y[order], head), own[order].sum(0))


@pytest.mark.parametrize("size", [1e4, 1e6, 1e9])
@pytest.mark.parametrize("count", [259, 515])
def test_a_head_that_listens_to_the_last_bits_hears_nothing(size, count):
    """Where records were mapped 256 at once, one more moved this sum by twice what it may."""
    x, y, phi = records("fourier", (784,), count + 1, 51)
    head = hostile(phi, x[count - 259 :], size)
    moved = total_of(phi, x, y, head) - total_of(phi, x[:-1], y[:-1], head)
    assert torch.equal(moved, total_of(phi, x[-1:], y[-1:], head))
    assert within(moved, Shape(phi.dimensions, CLASSES).sensitivity)


def test_images_too():
    x, y, phi = records("scattering", (1, 28, 28), 260, 51)
    head = hostile(phi, x, 1e9)
    moved = total_of(phi, x, y, head) - total_of(phi, x[:-1], y[:-1], head)
    assert torch.equal(moved, total_of(phi, x[-1:], y[-1:], head))


@pytest.mark.parametrize("name", ["own", "fourier", "scattering"])
def test_features_of_public_records_differ_in_their_last_bits_only(name):
    kind, shape, _ = CASES[name]
    x, _, phi = records(kind, shape, 60)
    torch.testing.assert_close(phi.batched(x), phi(x), rtol=1e-2, atol=2e-2 if name == "own" else 1e-5)
