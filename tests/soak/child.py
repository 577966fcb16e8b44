"""Reads hostile inputs in a process of its own, with little memory and a guard: its death is seen by its parent."""

import faulthandler
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.memory import forget_most, limit, most_resident, resident
from tests.fuzz.targets.target import Prepared, Target, tried
from tests.soak.guard import Executed, Guard

MIB = 2**20
INPUT, CRASH = "input", "crash"  # files in the child's folder: what is read just now, and its last words
ACCEPTED, REFUSED = "accepted", "refused"


class Verdict(NamedTuple):
    """On one input; `what` is accepted, refused, or what went wrong in one line."""

    number: int
    what: str
    seconds: float
    grown: int  # bytes of memory that it took at most


def work(target: Target, seed: int, numbers: Iterable[int], given: bytes | None, folder: Path, most: int,
         parent: Connection) -> None:  # fmt: skip
    """Every input of these numbers, or the one that is given, each told to the parent once it is read."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    crash = (folder / CRASH).open("w")
    faulthandler.enable(crash)
    os.environ["TMPDIR"] = str(folder)
    sys.dont_write_bytecode = True
    prepared = target.prepare(home)
    for valid in prepared.valid:
        assert tried(prepared, valid), f"{target.name}: what is valid is refused"
    guard = Guard(folder, target.own_code)
    limit(4 * most)
    parent.send(None)
    for number in numbers:
        data = target.input(prepared.valid, seed, number) if given is None else given
        (folder / INPUT).write_bytes(data)
        parent.send(judged(prepared, data, number, guard, most))


def judged(prepared: Prepared, data: bytes, number: int, guard: Guard, most: int) -> Verdict:
    forget_most()
    before, start = resident(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.start()
        try:
            what = ACCEPTED if tried(prepared, data) else REFUSED
        except Executed as error:
            what = f"execution: {error}"
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error!s:.200}"
        finally:
            guard.stop()
    seconds = time.perf_counter() - start
    grown = max(0, most_resident() - before)
    if guard.seen and not what.startswith("execution"):
        what = f"execution: {guard.seen}"
    if grown > most and what in (ACCEPTED, REFUSED):
        what = f"memory: {grown // MIB} MiB for {len(data)} bytes"
    return Verdict(number, " ".join(what.split()), seconds, grown)
