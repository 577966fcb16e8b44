"""Inputs that nobody took: images made from chance alone, for federations that have no public data.

What a client's network says of them is compared as on any alignment set; no image of anybody is behind them. From the
plainest to the most like photographs or drawings (Baradad, Wulff, Wang, Isola, Torralba 2021 compare such processes):

    noise     amplitude ~ 1 / frequency^a, with a drawn for each image: clouds, some coarse, some fine
    leaves    discs of random colour and place, the later in front; radii of density ~ r^-3 (Lee, Mumford, Huang 2001)
    fractals  points of a random iterated function system (Barnsley 1988), drawn as bright on dark

All values lie within 0 and 1, as those of stored images do.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import Floats

Generator = np.random.Generator
Doubles = NDArray[np.float64]

_AT_ONCE = 32  # images
_LEAVES = 120  # discs in an image: few of its points stay uncovered
_WALKERS, _STEPS, _SETTLING = 64, 60, 12  # points that wander at once, how far, and how far before they are drawn


def _noise(images: int, channels: int, height: int, width: int, rng: Generator) -> Doubles:
    """Filtered white noise; its channels are mixtures of the same three clouds, so that colours go together."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf  # no mean
    steepness = rng.uniform(0.5, 2.5, size=(images, 1, 1, 1))
    clouds = np.fft.rfft2(rng.normal(size=(images, 3, height, width))) * frequency**-steepness
    seen: Doubles = np.fft.irfft2(clouds, s=(height, width))
    seen = np.einsum("nck,nkhw->nchw", rng.normal(size=(images, channels, 3)), seen)
    spread = seen.std(axis=(1, 2, 3), keepdims=True)
    contrast = rng.uniform(0.1, 0.3, size=(images, 1, 1, 1))
    seen *= contrast / np.maximum(spread, 1e-12)
    seen += rng.uniform(0.3, 0.7, size=(images, channels, 1, 1))
    return seen


def _leaves(images: int, channels: int, height: int, width: int, rng: Generator) -> Doubles:
    canvas = np.broadcast_to(rng.random((images, channels, 1, 1)), (images, channels, height, width)).copy()
    rows, columns = np.arange(height)[None, :, None], np.arange(width)[None, None]
    least, most = max(1.0, min(height, width) / 16), min(height, width) / 2
    for _ in range(_LEAVES):
        # The inverse of the distribution function of r^-3 between the two ends.
        radius = (least**-2 - rng.random((images, 1, 1)) * (least**-2 - most**-2)) ** -0.5
        down = rng.uniform(0, height, size=(images, 1, 1))
        right = rng.uniform(0, width, size=(images, 1, 1))
        inside = (rows - down) ** 2 + (columns - right) ** 2 <= radius**2
        colour = rng.random((images, channels, 1, 1))
        np.copyto(canvas, colour, where=inside[:, None])
    return canvas


def _fractals(images: int, channels: int, height: int, width: int, rng: Generator) -> Doubles:
    maps = 3
    turned, squeezed = rng.uniform(0, 2 * np.pi, (2, images, maps)), rng.uniform(0.2, 0.85, (2, images, maps))
    # Rotation, two contractions, rotation: its larger singular value is below 1, so that points stay together.
    first, second = (np.stack([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in turned)
    linear = np.einsum("ijnm,jnm,jknm->nmik", first, squeezed, second)
    shift = rng.uniform(-1, 1, size=(images, maps, 2))
    place = np.zeros((images, _WALKERS, 2))
    path = np.empty((_STEPS, images, _WALKERS, 2))
    each = np.arange(images)[:, None]
    for step in range(_SETTLING + _STEPS):
        choice = rng.integers(maps, size=(images, _WALKERS))
        place = np.einsum("nwij,nwj->nwi", linear[each, choice], place) + shift[each, choice]
        if step >= _SETTLING:
            path[step - _SETTLING] = place
    points = path.transpose(1, 0, 2, 3).reshape(images, -1, 2)
    low, high = points.min(1, keepdims=True), points.max(1, keepdims=True)
    within = 0.1 + 0.8 * (points - low) / np.maximum(high - low, 1e-12)
    cell = (within * (height, width)).astype(np.int64)
    flat = each * (height * width) + cell[..., 0] * width + cell[..., 1]
    count = np.bincount(flat.ravel(), minlength=images * height * width).reshape(images, 1, height, width)
    bright = np.sqrt(count / np.maximum(count.max(axis=(2, 3), keepdims=True), 1))
    bright /= np.maximum(np.quantile(bright, 0.95, axis=(2, 3), keepdims=True), bright.max() * 0.25)
    coloured: Doubles = np.minimum(bright, 1.0) * rng.uniform(0.5, 1.0, size=(images, channels, 1, 1))
    return coloured


GENERATED: dict[str, Callable[[int, int, int, int, Generator], Doubles]] = {
    "noise": _noise,
    "leaves": _leaves,
    "fractals": _fractals,
}


def generated(field: str, kind: str, count: int, shape: tuple[int, ...], seed: int) -> Floats:
    """`count` images of this kind; they depend on the arguments alone."""
    if len(shape) != 3:
        raise UserError(
            f"{field} = {kind!r} makes images, but a record of the data set has shape {shape}; for a table name a file "
            "or a data set"
        )
    made = np.empty((count, *shape), dtype=np.float32)
    for start in range(0, count, _AT_ONCE):
        rng = np.random.default_rng([seed, start, *kind.encode()])
        part = made[start : start + _AT_ONCE]
        part[:] = GENERATED[kind](_AT_ONCE, *shape, rng)[: len(part)].clip(0.0, 1.0)
    return made
