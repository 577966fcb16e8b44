"""Data sets from folders of images: one folder a class, in one folder, or in its folders train and test."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded, is_folder
from fedbnn.base.wording import listing
from fedbnn.data.csv_source import tested
from fedbnn.data.dataset import Dataset
from fedbnn.data.stored import Array, Half, Stored, dataset_of

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp")
GREY = ("1", "L")
COLOURED = ("RGB", "RGBA", "P")
HALVES: tuple[Half, ...] = ("train", "test")


def load_folder(path: str, test_fraction: float, tests: int = 0) -> Dataset:
    """Images of one size, grey or coloured, as uint8; without folders train and test, a fixed share is for testing."""
    return dataset_of(ImageFolder(path, test_fraction), Path(path).name, tests=tests)


class ImageFolder(Stored):
    """Images whose class is the name of the folder they are in."""

    def __init__(self, path: str, test_fraction: float) -> None:
        self.origin = f"data.path = {path!r}"
        self.path = expanded(path, self.origin)
        if not is_folder(self.path):
            raise UserError(f"{self.origin}: there is no such folder")
        self.halves = HALVES
        self._fraction = test_fraction
        self._divided = {folder.name for folder in _folders(self.path)} == set(HALVES)

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        if self._divided:
            found: dict[Half, tuple[Array, Array]] = {half: self._images(self.path / half) for half in HALVES}
            if len({x.shape[1:] for x, _ in found.values()}) > 1:
                raise UserError(f"{self.origin}: images in train and test differ in size or colour")
            return {half: found[half] for half in halves}
        x, y = self._images(self.path)
        labels = np.unique(y, return_inverse=True)[1].astype(np.int64)
        train, test = tested(labels, None, self._fraction, self.origin, "folder")
        rows = dict(zip(HALVES, (train, test), strict=True))
        return {half: (x[rows[half]], y[rows[half]]) for half in halves}

    def _images(self, folder: Path) -> tuple[Array, Array]:
        """All images below a folder of classes, and the names of these."""
        files = [
            (file, one.name)
            for one in _folders(folder)
            for file in sorted(one.iterdir())
            if file.suffix.lower() in ENDINGS and not file.name.startswith(".")
        ]
        if not files:
            raise UserError(
                f"{self.origin}: {folder} has no folder with images ({', '.join(ENDINGS)}), one folder a class"
            )
        images = [self._image(file) for file, _ in files]
        grey = all(image.ndim == 2 for image in images)
        whole = [image if grey or image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images]
        for (file, _), image in zip(files, whole, strict=True):
            if image.shape != whole[0].shape:
                raise UserError(
                    f"{self.origin}: {file} is {image.shape[1]} x {image.shape[0]} pixels, {files[0][0].name} "
                    f"{whole[0].shape[1]} x {whole[0].shape[0]}: all must have one size"
                )
        return np.stack(whole), np.array([name for _, name in files], dtype=np.str_)

    def _image(self, file: Path) -> Array:
        """Height x width, or with three colours."""
        image_module = _pillow(self.origin)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of images that unfold to more than a screen ever shows
                with image_module.open(file) as image:
                    if image.mode not in (*GREY, *COLOURED):
                        raise UserError(
                            f"{self.origin}: {file} is of mode {image.mode}; {listing(GREY + COLOURED)} are read"
                        )
                    return np.asarray(image.convert("L" if image.mode in GREY else "RGB"), dtype=np.uint8)
        except UserError:
            raise
        except Exception as error:  # Pillow fails in many ways where a file is made up
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"{self.origin}: {file} cannot be read: {reason}") from None


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))


def _pillow(origin: str) -> Any:
    try:
        from PIL import Image  # noqa: PLC0415 (an extra)
    except ImportError:
        raise UserError(f"{origin}: folders of images need Pillow: pip install 'fedbnn[images]'") from None
    return Image
