"""Has a child read the inputs of a target, and watches it: whether it lives, and whether it goes on."""

import multiprocessing
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.targets.target import Target
from tests.soak.child import ACCEPTED, CRASH, INPUT, REFUSED, work

SAME = 3  # problems that are told alike of which inputs are kept
PREPARING = 300.0  # seconds until a child has made its valid files


@dataclass
class Tally:
    """What came of the inputs of one target."""

    target: str
    counts: dict[str, int] = field(default_factory=lambda: {ACCEPTED: 0, REFUSED: 0})
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0
    grown: int = 0

    @property
    def inputs(self) -> int:
        return sum(self.counts.values()) + len(self.problems)


@dataclass(frozen=True)
class Soak:
    """How inputs are read.

    Attributes:
        seconds: that one may take.
        memory: bytes that one may take.
        out: where inputs go that are problems.

    """

    seed: int
    seconds: float
    memory: int
    out: Path

    def read(self, target: Target, count: int, given: bytes | None = None) -> Tally:
        """So many inputs, or the given one; after a death or a hang the next process goes on behind it."""
        tally, first = Tally(target.name), 0
        while first < count:
            first = self._child(target, first, count, given, tally)
        return tally

    def _child(self, target: Target, first: int, count: int, given: bytes | None, tally: Tally) -> int:
        """The number to go on with."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix="fedbnn-fuzz-", ignore_cleanup_errors=True) as place:
            folder = Path(place)
            arguments = (target, self.seed, range(first, count), given, folder, self.memory, theirs)
            child = context.Process(target=work, args=arguments, daemon=True)
            child.start()
            theirs.close()
            try:
                if not ours.poll(PREPARING):
                    raise SystemExit(f"{target.name}: its valid files are not made after {PREPARING:g} s")
                ours.recv()
                while first < count:
                    if not ours.poll(self.seconds):
                        self._keep(tally, first, folder, f"hang: not read after {self.seconds:g} s")
                        return first + 1
                    verdict = ours.recv()
                    if verdict.what in tally.counts:
                        tally.counts[verdict.what] += 1
                    else:
                        self._keep(tally, first, folder, verdict.what)
                    tally.slowest = max(tally.slowest, verdict.seconds)
                    tally.grown = max(tally.grown, verdict.grown)
                    first += 1
            except EOFError:
                child.join()
                words = (
                    (folder / CRASH).read_text(errors="replace").split("\n\n")[0] if (folder / CRASH).exists() else ""
                )
                if not (folder / INPUT).exists():
                    raise SystemExit(f"{target.name}: its valid files cannot be made (see above)") from None
                self._keep(tally, first, folder, f"crash: exit code {child.exitcode}: {' '.join(words.split()):.300}")
                return first + 1
            finally:
                child.kill()
                child.join()
                ours.close()
        return first

    def _keep(self, tally: Tally, number: int, folder: Path, what: str) -> None:
        """The input of a problem, and how to read it again."""
        tally.problems.append(what)
        if tally.problems.count(what) > SAME:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / f"{tally.target.replace(' ', '-')}-{self.seed}-{number}"
        file.write_bytes((folder / INPUT).read_bytes())
        print(
            f"\n{tally.target}: {what}\n  python tests/soak/fuzz.py --only {tally.target!r} --replay {file}", flush=True
        )
