"""A client that makes two releases and dies, once at every step; `test_ledger` runs this file as a program.

    dying_client.py FOLDER MODE     ->  FOLDER/<step>/ledger, FOLDER/<step>/notes, and a JSON list of outcomes on stdout

A step is the moment before, in the middle of and after a call of os that changes or secures a file, and some moments of
the client's own. MODE says what dying means:

kill     the process is killed with SIGKILL; what it wrote is there
power    the machine loses power; what was not yet secured with fsync is gone: bytes, names of files, folders
twice    as kill, and a second client that goes on is killed too
"""

import json
import os
import shutil
import signal
import sys
import types
from itertools import count
from pathlib import Path

MU = 0.25
NAMES = ("one", "two")


class Machine:
    """Stands in for the calls of os, and stops everything at step `last`."""

    def __init__(self, last: int, power: bool):
        self.last, self.power = last, power
        self.steps = 0
        self.paths: dict[int, Path] = {}
        self.unsecured: dict[Path, int] = {}  # file -> its size on disk
        self.renamed: list[tuple[Path, bytes | None]] = []  # name, and what it stood for before
        self.os = {name: getattr(os, name) for name in ("open", "write", "fsync", "replace", "mkdir", "unlink")}
        for name in self.os:
            setattr(os, name, getattr(self, name))

    def step(self):
        if self.steps == self.last:
            if self.power:
                self.lose_power()
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1

    def lose_power(self):
        for name, real in self.os.items():
            setattr(os, name, real)
        for path, size in self.unsecured.items():
            with path.open("r+b") as file:
                file.truncate(size)
        for path, before in reversed(self.renamed):
            if before is not None:
                path.write_bytes(before)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def open(self, path, *rest):
        self.step()
        file = self.os["open"](path, *rest)
        self.paths[file] = Path(path)
        self.step()
        return file

    def write(self, file, data):
        self.step()
        self.unsecured.setdefault(self.paths[file], os.fstat(file).st_size)
        self.os["write"](file, data[: len(data) // 2])
        self.step()
        self.os["write"](file, data[len(data) // 2 :])
        self.step()
        return len(data)

    def fsync(self, file):
        """Nothing real: that takes time, and only the machine's own book decides what is lost."""
        self.step()
        path = self.paths[file]
        self.unsecured.pop(path, None)
        self.renamed = [(name, before) for name, before in self.renamed if name.parent != path]
        self.step()

    def replace(self, old, new):
        self.step()
        self.renamed.append((Path(new), Path(new).read_bytes() if Path(new).exists() else None))
        if old in self.unsecured:
            self.unsecured[Path(new)] = self.unsecured.pop(old)
        self.os["replace"](old, new)
        self.step()

    def mkdir(self, path, *rest):
        self.step()
        self.os["mkdir"](path, *rest)
        self.renamed.append((Path(path), None))
        self.step()

    def unlink(self, path, *rest, **named):
        self.step()
        self.os["unlink"](path, *rest, **named)
        self.step()


def client(folder: Path, machine: Machine) -> None:
    def note(*words):
        with (folder / "notes").open("a") as file:  # not a call of os: no step
            print(*words, file=file)

    with Ledger.open(folder / "ledger", "data", "client") as ledger:
        for name in NAMES:

            def make(name=name):
                note("entered", name)
                machine.step()
                noise = os.urandom(16)
                machine.step()
                return noise

            note("returned", name, ledger.release(name, "inputs", Cost(MU), [Limit(Budget(3.0, 1e-5))], make).hex())
            machine.step()


def run(folder: Path, last: int, power: bool) -> str:
    """In a process of its own; killed, finished, or what the ledger said."""
    process = os.fork()
    if process == 0:
        try:
            client(folder, Machine(last, power))
        except UserError as error:
            (folder / "refused").write_text(str(error))
            os._exit(2)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    if os.WIFSIGNALED(status):
        return {signal.SIGKILL: "killed"}[os.WTERMSIG(status)]
    return {0: "finished", 2: "refused"}[os.WEXITSTATUS(status)]


def main(root: Path, mode: str) -> None:
    outcomes = []
    for last in count():
        folder = root / str(last)
        folder.mkdir(parents=True)
        outcomes.append([run(folder, last, mode == "power")])
        if outcomes[-1] == ["finished"]:
            break
        if mode == "twice":
            outcomes[-1].append(run(folder, 7 * last % 90, power=False))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    source = Path(__file__).parents[2] / "src" / "fedbnn"
    for package, path in (("fedbnn", source), ("fedbnn.privacy", source / "privacy")):
        # Without what the packages import by themselves: a process that only needs the ledger starts at once.
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(path)]
    from fedbnn.base.errors import UserError
    from fedbnn.privacy.ledger import Budget, Cost, Ledger, Limit

    main(Path(sys.argv[1]), sys.argv[2])
