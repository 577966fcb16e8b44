"""Data sets from folders of images: one folder a class, in one folder, or in its folders train and test."""

from pathlib import Path

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded, is_folder
from fedbnn.data.csv_source import tested
from fedbnn.data.dataset import Dataset
from fedbnn.data.images import one_array, read_image
from fedbnn.data.stored import Array, Half, Stored, dataset_of

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp")
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
        images = [read_image(file, str(file), self.origin) for file, _ in files]
        names = np.array([name for _, name in files], dtype=np.str_)
        return one_array(images, [str(file) for file, _ in files], self.origin), names


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
