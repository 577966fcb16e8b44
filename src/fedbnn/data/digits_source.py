"""The handwritten digits that ship with scikit-learn (Alpaydin, Kaynak 1998), with a fixed stratified split."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedbnn.data.holdout import fixed_split
from fedbnn.data.stored import Array, Half, Stored

TEST = 450
_SKLEARN = find_spec("sklearn")  # looks for it without loading it


class Digits(Stored):
    """1797 images of 8 x 8 pixels, whose values 0 .. 16 become 0 .. 1."""

    origin = "data set 'digits'"
    halves = ("train", "test")
    path = Path((_SKLEARN.origin if _SKLEARN else None) or "sklearn").parent

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        images, y = _digits(self.path)
        x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        rows = dict(zip(("train", "test"), fixed_split(y, TEST), strict=True))
        return {half: (x[rows[half]], y[rows[half]]) for half in halves}


@cache
def _digits(package: Path) -> tuple[Array, Array]:
    """Images and labels as scikit-learn's `load_digits` gives them, without the second that it takes to load it."""
    table = np.loadtxt(package / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
