"""Where a data set comes from: the settings, and one function that reads what they name."""

import numpy as np
from pydantic import Field
from sklearn.datasets import load_digits

from fedbnn.data.csv_source import load_csv
from fedbnn.data.dataset import Dataset
from fedbnn.data.holdout import stratified_holdout
from fedbnn.data.known import KNOWN, find, what_to_put_where
from fedbnn.data.nearest import did_you_mean, listing
from fedbnn.data.npz_source import load_npz
from fedbnn.data.stored import Stored, dataset_of
from fedbnn.errors import UserError
from fedbnn.settings import STRICT, dataclass

SOURCES: dict[str, str] = {
    "digits": "1797 handwritten digits, 8 x 8 pixels, 10 classes; ships with scikit-learn, needs no download",
    **{name: known.summary for name, known in KNOWN.items()},
    "npz": "your arrays x_train, y_train, x_test, y_test in a NumPy archive; images or a table",
    "csv": "your table with a header row: numeric features, one column of classes, optionally one of clients",
}

DIGITS_TEST = 450
DIGITS_SPLIT_SEED = 0


@dataclass(frozen=True, config=STRICT)
class DataSettings:
    """Which records, and how many of them are public or kept for tuning."""

    source: str = Field(
        default="digits", description="Name of a data set, or npz or csv for a file of yours (see `fedbnn datasets`)."
    )
    path: str = Field(default="", description="File to read when the source is npz or csv.")
    target: str = Field(default="", description="Column that holds the class; csv only.")
    client_column: str = Field(
        default="",
        description='Column that names the client, for the "natural" partition; csv only, optional.',
    )
    test_fraction: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="Share of records held out for testing, the same for each class and client; csv only.",
    )
    alignment: int = Field(
        default=400,
        ge=0,
        description="Training records held out of every client as the public, unlabelled alignment set.",
    )
    validation: int = Field(
        default=0,
        ge=0,
        description="Training records held out of every client for tuning; "
        "scored instead of the test records when evaluation is on the validation split.",
    )


def load_dataset(settings: DataSettings) -> Dataset:
    """Read the data set that the settings name. The split into train and test never depends on a seed."""
    match settings.source:
        case "digits":
            return _digits()
        case "npz":
            return load_npz(_path(settings))
        case "csv":
            return load_csv(_path(settings), settings.target, settings.client_column, settings.test_fraction)
        case name if name in KNOWN:
            return dataset_of(_whole(name), name, KNOWN[name].names)
    raise UserError(
        f"data.source = {settings.source!r} is not known; sources are: {listing(SOURCES)}"
        f"{did_you_mean(settings.source, SOURCES)}"
    )


def _whole(name: str) -> Stored:
    stored = find(name)
    if stored is None:
        raise UserError(f"data.source = {name!r}: not found; {what_to_put_where(name)}")
    if "train" not in stored.halves:
        raise UserError(
            f"data.source = {name!r}: {stored.place} holds the test half only, which can serve as other clients' "
            f"foreign inputs but not be trained on; {what_to_put_where(name)}"
        )
    return stored


def _path(settings: DataSettings) -> str:
    if not settings.path:
        raise UserError(f"data.path is empty; source {settings.source!r} needs a file")
    return settings.path


def _digits() -> Dataset:
    images, target = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = target.astype(np.int64)
    test = stratified_holdout(y, DIGITS_TEST, np.random.default_rng(DIGITS_SPLIT_SEED))
    train = np.setdiff1d(np.arange(len(y)), test)
    return Dataset(
        name="digits",
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        class_names=tuple(str(digit) for digit in range(10)),
    )
