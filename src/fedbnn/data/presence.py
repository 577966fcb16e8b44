"""Which data sets are there, and where: names of files are looked at, records are not read."""

from dataclasses import dataclass

from fedbnn.base.errors import UserError
from fedbnn.data.download import total_size
from fedbnn.data.known import KNOWN, find, folders
from fedbnn.data.sources import SOURCES


@dataclass(frozen=True)
class Presence:
    """One source.

    Attributes:
        present: whether it can be trained on without a download.
        where: its path, or how to come by it, in words.
        download_mb: what a download would fetch; None where there is nothing to download.

    """

    source: str
    summary: str
    present: bool
    where: str
    download_mb: float | None = None


def presence() -> list[Presence]:
    """Every source, in the order of SOURCES."""
    folders()  # where $FEDBNN_DATA is no folder, that alone is worth saying
    return [_of(name, summary) for name, summary in SOURCES.items()]


def _of(name: str, summary: str) -> Presence:
    if name in ("digits", "diabetes"):
        return Presence(name, summary, True, "in scikit-learn")
    if name not in KNOWN:
        return Presence(name, summary, False, "your own file: data.path")
    megabytes = round(total_size(name) / 1e6, 2)
    try:
        stored = find(name)
    except UserError as error:
        return Presence(name, summary, False, f"cannot be read: {error}", megabytes)
    if stored is None:
        return Presence(name, summary, False, f"download on first use, {megabytes:.3g} MB", megabytes)
    where = f"{'' if stored.complete else 'test half only: '}{stored.path}"
    return Presence(name, summary, stored.complete, where, megabytes)
