"""The public data sets that are known by name: what they are, and which files of theirs lie where."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedbnn.base.cache import cache
from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded
from fedbnn.data.cifar_source import cifar_files
from fedbnn.data.heart_source import HeartFiles
from fedbnn.data.idx_source import IdxFiles
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.stored import Stored, best

VARIABLE = "FEDBNN_DATA"
ARRAYS = "x_train, y_train, x_test, y_test"

Find = Callable[[str, Path, str], Stored | None]


@dataclass(frozen=True)
class Known:
    """A public data set.

    Attributes:
        summary: one line for lists.
        files: the original files that are read, in words.
        find: the original files in or below a folder, if they are there: (name, folder, origin).
        names: the names of the labels, where its files may not give them.

    """

    summary: str
    files: str
    find: Find
    names: tuple[str, ...] = ()


def folders() -> list[Path]:
    """Where data sets are looked for, in this order: $FEDBNN_DATA if it is set, then the user's cache."""
    given = os.environ.get(VARIABLE, "")
    place = expanded(given, f"{VARIABLE} = {given!r}")
    if given and not place.is_dir():
        raise UserError(f"{VARIABLE} = {given!r} is not a folder; set it to the folder that holds your data sets")
    return [*([place] if given else []), cache()]


def find(name: str) -> Stored | None:
    """The first complete data set of this name, or else the first of which there is a test half alone."""
    return best(_all(name))


def _all(name: str) -> Iterator[Stored]:
    origin = f"data set {name!r}"
    for folder in folders():
        for archive in (folder / f"{name}.npz", folder / f"{name}_test.npz"):
            if archive.is_file():
                stored = NpzFile(archive, f"{origin} ({archive})")
                if "test" not in stored.halves:
                    raise UserError(
                        f"{stored.origin} has no arrays x_test and y_test; it has: {', '.join(stored.files)}"
                    )
                yield stored
        original = KNOWN[name].find(name, folder, origin)
        if original is not None:
            yield original


def _idx(name: str, folder: Path, origin: str) -> Stored | None:
    """In NAME/, NAME/raw and where torchvision puts them; MNIST's also in the folder itself.

    Both data sets use the same names of files, so that only one can have the folder.
    """
    theirs = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name]
    paths = [folder / name, folder / name / "raw", folder / theirs / "raw", *([folder] if name == "mnist" else [])]
    return best(IdxFiles(path, origin) for path in paths)


def _cifar(name: str, folder: Path, origin: str) -> Stored | None:
    return best(one for at in (folder, folder / name) for one in cifar_files(name, at, origin))


def _heart(name: str, folder: Path, origin: str) -> Stored | None:
    return best(HeartFiles(at, origin) for at in (folder / name, folder))


_IDX = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (.gz or not)"

KNOWN: dict[str, Known] = {
    "mnist": Known(
        "70000 handwritten digits, 28 x 28 pixels, 10 classes (LeCun, Cortes, Burges)",
        f"{_IDX} into it or its folder mnist/",
        _idx,
        tuple("0123456789"),
    ),
    "fashion_mnist": Known(
        "70000 pictures of clothes, 28 x 28 pixels, 10 classes (Xiao, Rasul, Vollgraf 2017)",
        f"{_IDX} into its folder fashion_mnist/",
        _idx,
        ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "cifar10": Known(
        "60000 colour photographs, 32 x 32 pixels, 10 classes (Krizhevsky 2009)",
        "cifar-10-binary.tar.gz or cifar-10-python.tar.gz, as it is or unpacked",
        _cifar,
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": Known(
        "60000 colour photographs, 32 x 32 pixels, 100 classes (Krizhevsky 2009)",
        "cifar-100-binary.tar.gz or cifar-100-python.tar.gz, as it is or unpacked",
        _cifar,
    ),
    "heart": Known(
        "740 patients of four hospitals, 13 features, disease or not; naturally federated (Janosi et al. 1988)",
        "processed.cleveland.data, processed.hungarian.data, processed.switzerland.data, processed.va.data "
        "into it or its folder heart/",
        _heart,
    ),
}


def what_to_put_where(name: str) -> str:
    """One sentence for a user whose files were not found."""
    looked = [f"{VARIABLE} = {one}" if at == 0 and len(folders()) > 1 else str(one) for at, one in enumerate(folders())]
    return (
        f"put {name}.npz ({ARRAYS}) into a folder, or {KNOWN[name].files}, and set {VARIABLE} to that folder "
        f"(looked in: {'; '.join(looked)})"
    )
