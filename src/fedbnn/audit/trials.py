"""Trials of an attack, one after the other or in worker processes, until there are enough or the time is over.

A fair coin, from the configuration's seed and the trial's number, says in which world a trial is played. So the coins
are the same for any number of workers; the noise is the operating system's, and never the same. Each trial has ledgers
of its own in a folder that is gone after it, in memory where the system has such a place (/dev/shm): what is written
before a release is on disk has no bearing on what the adversary sees.

A worker is `python -m fedbnn.audit.trials`: it reads what to do as one line of JSON, and writes a line for each trial.
How many trials there are may depend on the time, never on what they showed: what counts is the unbroken row from the
first one on.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import IO, Any, cast

import torch

from fedbnn.audit.attack import Attack
from fedbnn.audit.attacks import attack_on
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.loop import roster_of
from fedbnn.runs.config import Config, parse_config
from fedbnn.runs.experiment import Prepared

_MEMORY = Path("/dev/shm")  # noqa: S108 - names in it are as random as in any folder for temporary files


@dataclass(frozen=True)
class Trial:
    """One look at the wire.

    Attributes:
        present: whether the record was there.
        shown: what the adversary saw.

    """

    number: int
    present: bool
    shown: list[float]


def prepared_attack(config: Config, facts: bool) -> tuple[Prepared, Attack]:
    """The attack on the first client of a configuration."""
    # Whether anything could be learned through the noise is not the question here.
    checked = replace(config, privacy=replace(config.privacy, force=True))
    prepared = Prepared.of(checked, [config.method])
    sites = prepared.sites
    return prepared, attack_on(config.chosen(), sites[0].client, roster_of(sites), facts=facts)


def coin(seed: int, number: int) -> bool:
    """Whether the record is there in this trial."""
    return bool(Stream((seed, "audit", "coin", number)).seed & 1)


def played(attack: Attack, seed: int, first: int = 0, step: int = 1) -> Generator[Trial, None, None]:
    """Trials first, first + step, ..., without end, in this process."""
    place = tempfile.TemporaryDirectory(prefix="fedbnn-audit-", dir=_place())
    with place as folder, repeatable(Stream((seed, "audit"))):
        number = first
        while True:
            ledgers, present = Path(folder) / str(number), coin(seed, number)
            shown = attack.trial(present, ledgers)
            shutil.rmtree(ledgers, ignore_errors=True)
            yield Trial(number, present, shown)
            number += step


def checked(attack: Attack) -> None:
    """Raise what makes an attack impossible."""
    with tempfile.TemporaryDirectory(prefix="fedbnn-audit-", dir=_place()) as folder:
        attack.check(Path(folder))


def by_workers(config: Config, facts: bool, workers: int) -> Generator[Trial, None, None]:
    """The same trials from worker processes, in the order of their numbers."""
    task = {"config": config.to_json(), "facts": facts, "sys_path": [p or str(Path.cwd()) for p in sys.path]}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedbnn.audit.trials"]
    lines: Queue[str] = Queue()
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for worker in range(workers):
            process = subprocess.Popen(  # noqa: S603 - our own module with our own interpreter
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
                start_new_session=True,
            )
            processes.append(process)
            written = cast(IO[str], process.stdin)
            written.write(json.dumps({**task, "first": worker, "step": workers}) + "\n")
            written.flush()
            readers.append(threading.Thread(target=_collect, args=(cast(IO[str], process.stdout), lines)))
            readers[-1].start()
        yield from _in_order(lines)
    finally:
        for process in processes:
            process.terminate()
        for process, reader in zip(processes, readers, strict=True):
            process.wait()
            cast(IO[str], process.stdin).close()
            reader.join()


def _collect(output: IO[str], lines: "Queue[str]") -> None:
    with output:
        for line in output:
            lines.put(line)
    lines.put("")


def _in_order(lines: "Queue[str]") -> Iterator[Trial]:
    waiting: dict[int, Trial] = {}
    number = 0
    while True:
        line = lines.get()
        if not line:
            raise UserError("a worker process of the audit has ended; see its message above")
        found = json.loads(line)
        if "user_error" in found:
            raise UserError(found["user_error"])
        waiting[found["number"]] = Trial(**found)
        while number in waiting:
            yield waiting.pop(number)
            number += 1


def _place() -> Path | None:
    """A folder in memory, if there is one; otherwise where temporary files are."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def main() -> None:
    """One worker, until its output is closed or it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the folder of its ledgers goes with it
    torch.set_num_threads(1)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's code prints must not land between the lines
    task: dict[str, Any] = json.loads(sys.stdin.readline())
    sys.path[:] = task["sys_path"]

    def say(line: dict[str, Any]) -> None:
        output.write(json.dumps(line) + "\n")
        output.flush()

    try:
        config = parse_config(task["config"])
        _, attack = prepared_attack(config, task["facts"])
        with closing(played(attack, config.seed, task["first"], task["step"])) as trials:
            for trial in trials:
                say({"number": trial.number, "present": trial.present, "shown": trial.shown})
    except UserError as error:
        say({"user_error": str(error)})
    except BrokenPipeError:
        return  # nobody listens any more


if __name__ == "__main__":
    main()
