"""The handwritten digits that ship with scikit-learn (Alpaydin, Kaynak 1998), with a fixed stratified split."""

from pathlib import Path

import numpy as np
import sklearn
from sklearn.datasets import load_digits

from fedbnn.data.holdout import stratified_holdout
from fedbnn.data.stored import Array, Half, Stored

TEST = 450
SPLIT_SEED = 0


class Digits(Stored):
    """1797 images of 8 x 8 pixels, whose values 0 .. 16 become 0 .. 1."""

    said = "data set 'digits'"
    place = Path(sklearn.__file__).parent
    halves = ("train", "test")

    def read(self, *halves: Half) -> dict[Half, tuple[Array, Array]]:
        images, y = load_digits(return_X_y=True)
        x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        test = stratified_holdout(y, TEST, np.random.default_rng(SPLIT_SEED))
        rows = {"train": np.setdiff1d(np.arange(len(y)), test), "test": test}
        return {half: (x[rows[half]], y[rows[half]]) for half in halves}
