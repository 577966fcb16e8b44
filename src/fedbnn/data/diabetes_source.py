"""The diabetes table that ships with scikit-learn (Efron, Hastie, Johnstone, Tibshirani 2004), with a fixed split.

442 patients; ten values each (age, sex, body mass index, blood pressure, six of blood serum), which were published
scaled; the target is how far the disease has gone a year later, a number from 25 to 346.
"""

import numpy as np

from fedbnn.data.dataset import Dataset
from fedbnn.data.holdout import fixed_split
from fedbnn.models.regression import Scale

TEST = 110
PUBLISHED = Scale(150.0, 80.0)  # round numbers near those that are published with the table


def load_diabetes(scale: Scale) -> Dataset:
    from sklearn.datasets import load_diabetes as bundled  # noqa: PLC0415 - a second, which only its readers shall wait

    values, progression = bundled(return_X_y=True)
    x, y = values.astype(np.float32), progression.astype(np.float32)
    train, test = fixed_split(np.zeros(len(y), dtype=np.int64), TEST)
    return Dataset("diabetes", x[train], y[train], x[test], y[test], (), scale=scale)
