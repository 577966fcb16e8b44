"""Image files as arrays: uint8, grey or with three colours, all of one size."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing, one_line
from fedbnn.data.stored import Array

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")  # of Pillow's others, some start a program to read them
MOST_PIXELS = 2**24  # of one image: a few bytes can say that there are hundreds of millions
GREY = ("1", "L")
COLOURED = ("RGB", "RGBA", "P")


def read_image(source: Path | BinaryIO, called: str, origin: str) -> Array:
    """Height x width, or with three colours; errors call it `called`."""
    image_module = _pillow(origin)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of images that unfold to more than a screen ever shows
            with image_module.open(source, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    size = f"{image.width} x {image.height} pixels"
                    raise UserError(f"{origin}: {called} has {size}; at most {MOST_PIXELS} in all are read")
                if image.mode not in (*GREY, *COLOURED):
                    raise UserError(f"{origin}: {called} is of mode {image.mode}; {listing(GREY + COLOURED)} are read")
                return np.asarray(image.convert("L" if image.mode in GREY else "RGB"), dtype=np.uint8)
    except UserError:
        raise
    except Exception as error:  # Pillow fails in many ways where a file is made up
        raise UserError(
            f"{origin}: {called} cannot be read: {one_line(str(error) or type(error).__name__, 300)}"
        ) from None


def one_array(images: Sequence[Array], called: Sequence[str], origin: str) -> Array:
    """N x height x width, or with three colours as soon as one image has them."""
    grey = all(image.ndim == 2 for image in images)
    whole = [image if grey or image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images]
    for name, image in zip(called, whole, strict=True):
        if image.shape != whole[0].shape:
            raise UserError(
                f"{origin}: {name} is {image.shape[1]} x {image.shape[0]} pixels, {Path(called[0]).name} "
                f"{whole[0].shape[1]} x {whole[0].shape[0]}: all must have one size"
            )
    return np.stack(whole)


def _pillow(origin: str) -> Any:
    """Pillow with the readers of FORMATS: it loads all others, too, where one of these is not there yet."""
    try:
        from PIL import (  # noqa: PLC0415 (an extra)
            BmpImagePlugin,  # noqa: F401
            GifImagePlugin,  # noqa: F401
            Image,
            JpegImagePlugin,  # noqa: F401
            PngImagePlugin,  # noqa: F401
            TiffImagePlugin,  # noqa: F401
            WebPImagePlugin,  # noqa: F401
        )
    except ImportError:
        raise UserError(f"{origin}: images need Pillow: pip install 'fedbnn[images]'") from None
    return Image
