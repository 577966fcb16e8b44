"""The handwritten digits that ship with scikit-learn (Alpaydin, Kaynak 1998), with a fixed stratified split."""

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
        from sklearn.datasets import load_digits  # noqa: PLC0415 - a second, which only who reads digits shall wait

        images, y = load_digits(return_X_y=True)
        x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        rows = dict(zip(("train", "test"), fixed_split(y, TEST), strict=True))
        return {half: (x[rows[half]], y[rows[half]]) for half in halves}
