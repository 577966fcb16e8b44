"""How much memory a process has, and a limit to what it may have besides. On Linux."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def addresses() -> int:
    """Bytes that the process may speak of, whether or not memory stands behind them."""
    return _statm(0)


def resident() -> int:
    """Bytes of memory that the process has."""
    return _statm(1)


def forget_most() -> None:
    """Have `most_resident` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")  # see proc(5)


def most_resident() -> int:
    """The most that it ever had, or has had since `forget_most`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit(more: int) -> None:
    """From now on, not more than so many bytes of addresses beyond those that the process has."""
    resource.setrlimit(resource.RLIMIT_AS, (addresses() + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextmanager
def little_memory(more: int) -> Iterator[None]:
    """The same for a while."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit(more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _statm(which: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[which]) * os.sysconf("SC_PAGESIZE")
