"""Where a data set comes from: one function that reads what the settings name."""

import dataclasses

from fedbnn.base.arguments import check_kind
from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded, is_folder
from fedbnn.base.wording import did_you_mean, listing
from fedbnn.data.csv_source import load_csv
from fedbnn.data.dataset import Dataset, Floats
from fedbnn.data.diabetes_source import load_diabetes
from fedbnn.data.digits_source import Digits
from fedbnn.data.download import DownloadFailed, download
from fedbnn.data.folder_source import load_folder
from fedbnn.data.huggingface_source import load_huggingface
from fedbnn.data.known import KNOWN, find, what_to_put_where
from fedbnn.data.npz_source import load_npz
from fedbnn.data.own_source import load_own
from fedbnn.data.settings import DataSettings
from fedbnn.data.stored import Stored, dataset_of
from fedbnn.data.tables.dataset import TableDataset, load_tables
from fedbnn.data.tables.layout import Layout

SOURCES: dict[str, str] = {
    "digits": "1797 handwritten digits, 8 x 8 pixels, 10 classes; ships with scikit-learn, needs no download",
    "diabetes": '442 patients, 10 features, a number to predict (data.task = "regression"); ships with scikit-learn',
    **{name: known.summary for name, known in KNOWN.items()},
    "npz": "your arrays x_train, y_train, x_test, y_test in a NumPy archive; images or a table",
    "csv": "your table with a header row, a column of classes or numbers and, optionally, one of clients; or one file "
    "a client",
    "parquet": "the same in Parquet files (needs the extra fedbnn[parquet])",
    "huggingface": "a Hugging Face data set on your disk (save_to_disk, .arrow, .parquet), images or a table (needs "
    "the extra fedbnn[huggingface])",
    "folder": "your images of one size, one folder a class (needs the extra fedbnn[images])",
}


def load_dataset(settings: DataSettings) -> Dataset | TableDataset:
    """Read the data set that the settings name. The split into train and test never depends on a seed.

    A table with declared columns, or of several files, is not features yet: `federate` makes them.
    """
    check_kind("settings", settings, DataSettings, "fedbnn.DataSettings(source=...)")
    _check_task(settings)
    dataset = _load(settings)
    return _without_last(_plain(dataset), settings.unseen_classes) if settings.unseen_classes else dataset


def _check_task(settings: DataSettings) -> None:
    """Refuse, before anything is read, a source or a setting that has no part in the task."""
    if settings.alignment_skew > 1 and (settings.regression or settings.alignment_source):
        beside = "data.task = 'regression'" if settings.regression else "data.alignment_source"
        raise UserError(f"data.alignment_skew is for classes of the data set itself, not beside {beside}; set it to 1")
    if not settings.regression:
        if settings.source == "diabetes":
            raise UserError("data.source = 'diabetes' has a real number to predict: set data.task = 'regression'")
        for field in ("target_mean", "target_sd"):
            if getattr(settings, field) != 0:
                raise UserError(f"data.{field} is for data.task = 'regression'; leave it out")
        return
    if settings.source in ("digits", "folder", *KNOWN):
        raise UserError(f"data.task = 'regression', but data.source = {settings.source!r} has classes")
    if settings.unseen_classes:
        raise UserError("data.unseen_classes is for classification; set it to 0")


def unseen_inputs(settings: DataSettings) -> Floats:
    """Test inputs of the last `data.unseen_classes` classes, as loaded."""
    if settings.unseen_classes == 0:
        raise UserError('evaluation.foreign = "unseen" needs data.unseen_classes of 1 or more')
    dataset = _plain(_load(settings))
    return dataset.x_test[dataset.y_test >= dataset.classes - settings.unseen_classes]


def _plain(dataset: Dataset | TableDataset) -> Dataset:
    if isinstance(dataset, TableDataset):
        raise UserError("data.unseen_classes is not for tables with data.columns or of several files; set it to 0")
    return dataset


def _load(settings: DataSettings) -> Dataset | TableDataset:
    tests = settings.test_records
    match settings.source:
        case "npz":
            return load_npz(_file(settings), tests, settings.scale())
        case "csv" if _numeric(settings):
            names = settings.target, settings.client_column
            table = load_csv(_file(settings), *names, settings.test_fraction, settings.delimiter, settings.scale())
            return _first(table, tests) if tests else table
        case "csv" | "parquet":
            tables = _tables(settings)
            return tables.first_tests(tests) if tests else tables
        case "huggingface":
            found = _huggingface(settings)
            if isinstance(found, TableDataset):
                return found.first_tests(tests) if tests else found
            return _first(found, tests) if tests else found
        case "folder":
            return load_folder(_file(settings), settings.test_fraction, tests)
        case name if ":" in name:
            own = load_own(name, settings.test_fraction, settings.known_scale if settings.regression else None)
            return _first(own, tests) if tests else own
        case "diabetes":
            diabetes = load_diabetes(settings.known_scale())
            return _first(diabetes, tests) if tests else diabetes
        case name if name == "digits" or name in KNOWN:
            return dataset_of(_complete(name), name, () if name == "digits" else KNOWN[name].names, tests)
    raise UserError(
        f"data.source = {settings.source!r} is not known; sources are: {listing(SOURCES)}"
        f"{did_you_mean(settings.source, SOURCES)}"
    )


def raw_tables(settings: DataSettings) -> TableDataset | None:
    """The cells of a table, also of one that `load_dataset` reads as numbers at once: the same rows in order."""
    if settings.source == "huggingface":
        found = _huggingface(settings)
        return found if isinstance(found, TableDataset) else None
    return _tables(settings) if settings.source in ("csv", "parquet") else None


def _huggingface(settings: DataSettings) -> Dataset | TableDataset:
    names = settings.target, settings.client_column
    return load_huggingface(_file(settings), *names, settings.test_fraction, settings.columns, settings.layout)


def _tables(settings: DataSettings) -> TableDataset:
    return load_tables(
        _path(settings),
        settings.source,
        settings.target,
        settings.client_column,
        settings.test_fraction,
        settings.columns,
        settings.layout,
        settings.scale(),
    )


def obtain(field: str, name: str) -> Stored:
    """The files of a data set by name, a test half alone included, downloaded where there are none.

    `field` is the setting that named it.
    """
    if name == "digits":
        return Digits()
    stored = find(name)
    if stored is None:
        try:
            download(name)
        except DownloadFailed as error:
            raise UserError(
                f"{field} = {name!r}: there are no files of it, and the download failed ({error}); "
                f"{what_to_put_where(name)}"
            ) from None
        stored = find(name)
        assert stored is not None, name
    return stored


def _complete(name: str) -> Stored:
    """The same with both halves, as data.source needs it."""
    stored = obtain("data.source", name)
    if not stored.complete:
        raise UserError(
            f"data.source = {name!r}: {stored.path} holds the test half only, which can be asked about (as "
            f"data.alignment_source or evaluation.foreign) but not trained on; {what_to_put_where(name)}"
        )
    return stored


def _numeric(settings: DataSettings) -> bool:
    """Whether this is one table of which every feature is a number, as long as nothing else is said."""
    if settings.columns or not isinstance(settings.path, str) or settings.layout != Layout(settings.delimiter):
        return False
    return not settings.path or not is_folder(expanded(settings.path, f"data.path = {settings.path!r}"))


def _path(settings: DataSettings) -> str | tuple[str, ...]:
    if not settings.path:
        raise UserError(f"data.path is empty; source {settings.source!r} needs a file")
    return settings.path


def _file(settings: DataSettings) -> str:
    path = _path(settings)
    if not isinstance(path, str):
        raise UserError(f"data.path = {list(path)}: source {settings.source!r} needs one file")
    return path


def _without_last(data: Dataset, unseen: int) -> Dataset:
    known = data.classes - unseen
    if known < 2:
        raise UserError(
            f"data.unseen_classes = {unseen}, but data set {data.name!r} has {data.classes} classes; at least 2 must "
            "be left: lower it"
        )
    train, test = data.y_train < known, data.y_test < known
    return dataclasses.replace(
        data,
        x_train=data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_test[test],
        y_test=data.y_test[test],
        class_names=data.class_names[:known],
        group_train=None if data.group_train is None else data.group_train[train],
        group_test=None if data.group_test is None else data.group_test[test],
    )


def _first(data: Dataset, tests: int) -> Dataset:
    groups = data.group_test
    return dataclasses.replace(
        data,
        x_test=data.x_test[:tests],
        y_test=data.y_test[:tests],
        group_test=None if groups is None else groups[:tests],
    )
