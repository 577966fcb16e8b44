"""`fedbnn flower up`: the federation of a folder, run from start to end on this machine."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedbnn.base.errors import UserError
from fedbnn.deployment.site_file import SiteSettings, read_site
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.deployment.trial.loopback import Loopback, LoopbackFailure

LOG_LINE = re.compile(r"(INFO|DEBUG|WARNING|ERROR) ?: *(.*)")
NOISE = re.compile(
    r"Flower App configuration warnings|- Recommended property|Using SuperLink|Starting logstream|Start `flwr-|"
    r"Successfully (started|installed)|All logs for run|$"
)


@dataclass(frozen=True)
class Trial:
    """A folder that was checked: its terms, and its sites in their order."""

    folder: Path
    terms: Terms
    sites: tuple[SiteSettings, ...]

    @classmethod
    def of(cls, folder: Path, nodes: int | None = None) -> "Trial":
        """Check a folder before anything is started; `nodes` must be the number of its sites, if given."""
        if not (folder / "pyproject.toml").is_file() or not (folder / "server" / "terms.json").is_file():
            raise UserError(f"{folder} is no federation; `fedbnn flower init {folder}` writes one")
        terms = read_terms(folder / "server" / "terms.json")
        if nodes is not None and nodes != len(terms.sites):
            raise UserError(
                f"--nodes {nodes}: the terms of {folder} name {len(terms.sites)} sites, and all of them take part; "
                f"leave --nodes out, or write a folder for {nodes}: fedbnn flower init NEW --nodes {nodes}"
            )
        return cls(folder, terms, tuple(read_site(folder / "sites" / name / "site.toml") for name in terms.sites))

    def run(self, say: Callable[[str], None], timeout: float) -> None:
        """Start everything, run, and end everything, whatever happens; `say` hears how it goes, in plain words."""
        names = self.terms.sites
        with _ended_by_signals(), Loopback(self.folder, names) as loopback:
            say(f"starting the link on {loopback.address} with TLS; {len(names)} keys registered with it")
            loopback.start_link()
            say(f"starting {len(names)} nodes: {', '.join(names)}")
            loopback.start_nodes()
            say(f"running {self.terms.run}: {self.terms.method}, {self.terms.rounds} rounds after the warm-up")
            submission = loopback.submit()
            for line in submission.lines(timeout):
                if words := plain(line):
                    say(words)
            status = submission.status()
            say("stopping all processes")
        if status != "finished:completed":
            raise LoopbackFailure(f"the run ended as '{status}'; the logs are in {loopback.logs}")


def plain(line: str) -> str:
    """What a line of Flower's log says to somebody who only wants to know how the run goes; empty: nothing."""
    logged = LOG_LINE.match(line)
    level, words = (logged[1], logged[2].strip()) if logged else ("", line.rstrip())
    if NOISE.match(words) or level == "DEBUG":
        return ""
    return f"{level.lower()}: {words}" if level in ("WARNING", "ERROR") else words


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A closed terminal or `kill` ends a trial as Ctrl-C does, with all its processes."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
