"""A wavelet scattering transform of images: features that nobody has to learn (Bruna and Mallat 2013).

With complex Morlet wavelets psi_(j, l) at scale 2^j and angle pi l / L, a Gaussian low-pass phi_J, and u = x * psi
for convolution,

    order 0:  x * phi_J
    order 1:  |x * psi_(j1, l1)| * phi_J                              j1 < J
    order 2:  ||x * psi_(j1, l1)| * psi_(j2, l2)| * phi_J             j1 < j2 < J

each taken once in every block of 2^J x 2^J pixels: 1 + J L + L^2 J (J - 1) / 2 maps per channel. The widths and
frequencies of the filters are those of Oyallon and Mallat (2015). Wavelets are applied in the Fourier domain, where a
map of scale 2^j is computed at every 2^j-th pixel only; the low-pass is a small matrix on either side of the image.
Points of a coarser grid lie in the middle of the blocks they stand for, so turning an image by 90 degrees turns its
maps and moves orientation l to l + L / 2. Images are continued by reflection.
"""

from functools import lru_cache

import torch
from torch import Tensor

_WIDTH = 0.8  # standard deviation of the envelope at scale 1, in pixels
_FREQUENCY = 0.75 * torch.pi  # centre of the wavelet's pass band at scale 1
_ALIASES = range(-2, 3)  # multiples of 2 pi at which the filters' Fourier transforms are not yet negligible
_MOST_NUMBERS = 2**20  # complex ones, in the largest array of a batch: 8 MB, which stays near the processor
_BANK_GRID = 64  # points per axis on which the filters are brought to scale


def default_scales(height: int, width: int) -> int:
    """J: blocks of 8 x 8 pixels, or smaller ones where the image is small."""
    smallest = min(height, width)
    return 3 if smallest >= 24 else 2 if smallest >= 16 else 1


def maps(scales: int, orientations: int) -> int:
    """The number of maps for each channel."""
    pairs = scales * (scales - 1) // 2
    return 1 + scales * orientations + pairs * orientations * orientations


def features(shape: tuple[int, int, int], scales: int, orientations: int) -> int:
    """The number of features of an image of this shape (channels, height, width)."""
    block = 1 << scales
    return shape[0] * maps(scales, orientations) * -(-shape[1] // block) * -(-shape[2] // block)


def mirrored(shape: tuple[int, int, int], scales: int, orientations: int) -> Tensor:
    """The order in which a mirror image has the features of its image: scattering(x.flip(3)) = scattering(x)[:, order].

    Mirroring turns columns round and orientation l into -l. Exact where the image lies in the middle of its blocks;
    with an odd number of pixels to spare it is beside it by one.
    """
    paths: list[tuple[int, ...]] = [()]
    for first in range(scales):
        paths += [(first, one) for one in range(orientations)]
        for second in range(first + 1, scales):
            paths += [(first, one, second, two) for one in range(orientations) for two in range(orientations)]
    number = {path: at for at, path in enumerate(paths)}
    turned = [tuple(-n % orientations if at % 2 else n for at, n in enumerate(path)) for path in paths]
    block = 1 << scales
    grid = torch.arange(features(shape, scales, orientations)).view(
        shape[0], len(paths), -(-shape[1] // block), -(-shape[2] // block)
    )
    return grid[:, torch.tensor([number[path] for path in turned])].flip(3).flatten()


@torch.no_grad()
def scattering(x: Tensor, scales: int = 2, orientations: int = 8) -> Tensor:
    """The transform of images [n, c, h, w], flattened in the order (channel, map, row, column): [n, features].

    The maps stand in the order of their path: order 0, then for each j1 all of order 1 by l1, then for each j2 > j1
    all of order 2 by (l1, l2). Each image is transformed by itself: a value that is not finite spoils its own row only.
    """
    if x.dim() != 4 or x.shape[1] == 0 or min(x.shape[2:]) == 0:
        raise ValueError(f"images have shape {tuple(x.shape)}: must be (n, channels, height, width)")
    if scales < 1 or orientations < 1:
        raise ValueError(f"scales is {scales} and orientations is {orientations}: both must be at least 1")
    count, channels, height, width = x.shape
    result = torch.empty(count, features((channels, height, width), scales, orientations))
    rows, columns = _reflection(height, 2**scales), _reflection(width, 2**scales)
    per_image = channels * orientations * max(1, orientations * (scales > 1)) * len(rows) * len(columns)
    few = max(1, _MOST_NUMBERS // per_image)
    for start in range(0, count, few):
        part = x[start : start + few].float()
        padded = part.index_select(2, rows).index_select(3, columns).reshape(-1, len(rows), len(columns))
        result[start : start + few] = _paths(padded, scales, orientations).reshape(len(part), -1)
    return result


@lru_cache(maxsize=64)
def _reflection(size: int, block: int) -> Tensor:
    """Indices that continue a row to whole blocks, and by one block more on either side, mirrored at its end pixels."""
    total = -(-size // block) * block + 2 * block
    before = (total - size) // 2
    period = max(1, 2 * (size - 1))
    index = torch.arange(-before, total - before) % period
    return torch.minimum(index, period - index)


def _paths(x: Tensor, scales: int, orientations: int) -> Tensor:
    """All maps of single-channel images [n, h, w]: [n, maps, h / 2^J - 2, w / 2^J - 2]."""
    spectrum = torch.fft.fft2(x)
    maps = [_averaged(x.unsqueeze(1), scales)]
    for first in range(scales):
        moduli = _modulus(spectrum, first, scales, orientations)
        maps.append(_averaged(moduli, scales - first))
        if first + 1 < scales:
            spectra = torch.fft.fft2(moduli)
            for second in range(first + 1, scales):
                # On the coarser grid of `moduli`, the wavelet of scale 2^second is that of 2^(second - first).
                both = _modulus(spectra, second - first, scales, orientations)
                maps.append(_averaged(both.flatten(1, 2), scales - second))
    return torch.cat(maps, 1)


def _modulus(spectrum: Tensor, scale: int, scales: int, orientations: int) -> Tensor:
    """|u * psi| at every 2^scale-th point for all orientations, from the spectrum [..., h, w] of u."""
    height, width = spectrum.shape[-2:]
    product = spectrum.unsqueeze(-3) * _wavelets(height, width, scale, scales, orientations)
    if scale > 0:  # leaving out points in space adds up parts of the spectrum
        step = 2**scale
        folded = product.unflatten(-1, (step, width // step)).sum(-2)
        product = folded.unflatten(-2, (step, height // step)).sum(-3)
    parts = torch.view_as_real(torch.fft.ifft2(product, norm="forward"))
    real, imaginary = parts.unbind(-1)
    return torch.addcmul(real.square(), imaginary, imaginary).sqrt_()


def _averaged(u: Tensor, levels: int) -> Tensor:
    """Means u * phi_J in the middle of every 2^levels x 2^levels points of u's grid, without the outermost blocks."""
    return _low_pass(u.shape[-2], levels) @ u @ _low_pass(u.shape[-1], levels).T


@lru_cache(maxsize=64)
def _low_pass(size: int, levels: int) -> Tensor:
    """The matrix of the Gaussian of width 0.8 * 2^(levels - 1), a row for each block but the first and the last."""
    step = 2**levels
    centres = step * torch.arange(1, size // step - 1, dtype=torch.float64) + (step - 1) / 2
    distance = torch.arange(size, dtype=torch.float64) - centres.unsqueeze(1)
    distance = (distance + size / 2) % size - size / 2  # on a circle
    weights = torch.exp(-0.5 * (distance / (_WIDTH * step / 2)) ** 2)
    return (weights / weights.sum(1, keepdim=True)).float()


@lru_cache(maxsize=64)
def _wavelets(height: int, width: int, scale: int, scales: int, orientations: int) -> Tensor:
    """The Fourier transforms of psi_(scale, l) [orientations, height, width], with all factors of the convolution."""
    bank = _morlet(height, width, scale, orientations) * (_gain(scales, orientations) / (height * width))
    return bank.to(torch.complex64)


@lru_cache(maxsize=64)
def _gain(scales: int, orientations: int) -> float:
    """The largest factor for the wavelets with which no convolution adds energy.

    For real u, ||u * phi||^2 + sum ||u * psi||^2 is the integral of |u^|^2 times the Littlewood-Paley sum
    |phi^(w)|^2 + 1/2 sum (|psi^(w)|^2 + |psi^(-w)|^2): it must not exceed 1 anywhere.
    """
    low, waves = littlewood_paley(_BANK_GRID, _BANK_GRID, scales, orientations)
    waves[0, 0] = 1.0  # phi^ is one and psi^ is zero there
    room = (1 - low) / waves
    room[0, 0] = torch.inf
    return float(room.min().sqrt())


def littlewood_paley(height: int, width: int, scales: int, orientations: int) -> tuple[Tensor, Tensor]:
    """The low-pass's and the wavelets' part of the Littlewood-Paley sum before scaling, at each Fourier frequency."""
    total = torch.zeros(height, width, dtype=torch.float64)
    for scale in range(scales):
        total += _morlet(height, width, scale, orientations).abs().square().sum(0)
    opposite = total.flip(0, 1).roll((1, 1), (0, 1))
    sigma = _WIDTH * 2 ** (scales - 1)
    low = torch.zeros_like(total)
    for down, across in _shifted_frequencies(height, width):
        low += torch.exp(-0.5 * sigma**2 * (down**2 + across**2))
    return low.square(), (total + opposite) / 2


def _shifted_frequencies(height: int, width: int) -> list[tuple[Tensor, Tensor]]:
    """The grid's frequencies (vertical, horizontal) and those that cannot be told from them on whole pixels."""
    down = 2 * torch.pi * torch.fft.fftfreq(height, dtype=torch.float64).unsqueeze(1)
    across = 2 * torch.pi * torch.fft.fftfreq(width, dtype=torch.float64)
    return [(down + 2 * torch.pi * i, across + 2 * torch.pi * k) for i in _ALIASES for k in _ALIASES]


def _morlet(height: int, width: int, scale: int, orientations: int) -> Tensor:
    """The Fourier transforms of Morlet wavelets at scale 2^scale: complex double [orientations, height, width].

    psi(t) = g(t) (e^(i xi t1) - k), t1 along the angle and t2 across, g Gaussian with variances sigma^2 and
    sigma^2 / slant^2, slant = 4 / L (the more angles, the narrower), k such that psi sums to zero. So
    psi^(w) = g^(w1 - xi, w2) - k g^(w1, w2), summed over the aliases of w. The factor e^(i w s) moves the points at
    which the convolution is read by s = (2^scale - 1) / 2 pixels, to the middle of their blocks.
    """
    sigma, centre, across_sigma = _WIDTH * 2**scale, _FREQUENCY / 2**scale, _WIDTH * 2**scale * orientations / 4
    middle = (2**scale - 1) / 2
    angles = torch.arange(orientations, dtype=torch.float64).view(-1, 1, 1) * torch.pi / orientations
    cos, sin = angles.cos(), angles.sin()
    wave = torch.zeros(orientations, height, width, dtype=torch.complex128)
    envelope = torch.zeros_like(wave)
    for down, across in _shifted_frequencies(height, width):
        along, beside = across * cos + down * sin, down * cos - across * sin
        turn = torch.exp(1j * middle * (down + across))
        wave += turn * torch.exp(-0.5 * ((sigma * (along - centre)) ** 2 + (across_sigma * beside) ** 2))
        envelope += turn * torch.exp(-0.5 * ((sigma * along) ** 2 + (across_sigma * beside) ** 2))
    return wave - wave[:, :1, :1] / envelope[:, :1, :1] * envelope
