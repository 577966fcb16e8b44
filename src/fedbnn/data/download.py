"""Fetches the original files of a public data set into the user's cache: checked, and whole or not at all."""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedbnn.base.cache import cache

TIMEOUT = 30  # seconds without a sign of life
CHUNK = 1 << 16


class DownloadFailed(Exception):
    """A file could not be had, or is not what it should be; the text says which and why."""


@dataclass(frozen=True)
class Remote:
    """A file on the web with its size in bytes and SHA-256."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


_FOLDERS = {
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "cifar10": "https://www.cs.toronto.edu/~kriz",
    "cifar100": "https://www.cs.toronto.edu/~kriz",
    "heart": "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease",
}

# Sizes and checksums of the pictures are those of TensorFlow Datasets, which fetches the same files.
_FILES = {
    "mnist": {
        "train-images-idx3-ubyte.gz": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        "train-labels-idx1-ubyte.gz": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        "t10k-images-idx3-ubyte.gz": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        "t10k-labels-idx1-ubyte.gz": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte.gz": (
            26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        "train-labels-idx1-ubyte.gz": (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        "t10k-images-idx3-ubyte.gz": (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        "t10k-labels-idx1-ubyte.gz": (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    },
    "cifar10": {
        "cifar-10-binary.tar.gz": (170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    },
    "cifar100": {
        "cifar-100-binary.tar.gz": (168513733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
    },
    "heart": {
        "processed.cleveland.data": (18461, "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"),
        "processed.hungarian.data": (10263, "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"),
        "processed.switzerland.data": (4109, "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"),
        "processed.va.data": (6737, "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
    },
}

REMOTES: dict[str, tuple[Remote, ...]] = {
    name: tuple(Remote(f"{_FOLDERS[name]}/{file}", size, sha256) for file, (size, sha256) in files.items())
    for name, files in _FILES.items()
}


def total_size(name: str) -> int:
    """Bytes to fetch."""
    return sum(remote.size for remote in REMOTES[name])


def download(name: str) -> Path:
    """Fetch a data set into its folder of the cache, archives unpacked; a bar on standard error shows how it goes.

    Files appear there only when all of them are whole and as they should be.
    """
    target = cache() / name
    console = Console(stderr=True)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    temporary: Path | None = None
    try:
        target.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".partial-", dir=target))
        with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task(f"fetching {name}", total=total_size(name))
            for remote in REMOTES[name]:
                _fetch(remote, temporary / remote.name, lambda count: bar.advance(task, count))
        for archive in temporary.glob("*.tar.gz"):
            _unpack(archive)
        for entry in temporary.iterdir():
            shutil.rmtree(target / entry.name, ignore_errors=True)
            entry.replace(target / entry.name)
    except OSError as error:
        raise DownloadFailed(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def _fetch(remote: Remote, path: Path, advance: Callable[[int], None]) -> None:
    digest, received = hashlib.sha256(), 0
    with path.open("wb") as file:
        try:
            with urllib.request.urlopen(remote.url, timeout=TIMEOUT) as response:  # noqa: S310 - addresses of our own
                while received <= remote.size and (chunk := response.read(CHUNK)):
                    digest.update(chunk)
                    received += len(chunk)
                    file.write(chunk)
                    advance(len(chunk))
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise DownloadFailed(f"{remote.url}: {' '.join(str(error).split()) or type(error).__name__}") from None
    if received != remote.size:
        many = f"more than {remote.size}" if received > remote.size else str(received)
        raise DownloadFailed(f"{remote.url}: {many} bytes came where {remote.size} were expected")
    if digest.hexdigest() != remote.sha256:
        raise DownloadFailed(f"{remote.url}: the checksum is wrong: the file has changed or was damaged on its way")


def _unpack(archive: Path) -> None:
    """Beside the archive, which goes: reading files is many times quicker than going through it in every run."""
    with tarfile.open(archive, "r:gz") as packed:
        for entry in packed:
            stream = packed.extractfile(entry) if entry.isreg() else None
            if stream is not None:
                folder, name = Path(entry.name).parts[-2:]
                (archive.parent / folder).mkdir(exist_ok=True)
                with (archive.parent / folder / name).open("wb") as file:
                    shutil.copyfileobj(stream, file)
    archive.unlink()
