"""A run that is killed at some steps and taken up again; `test_kill` runs this file as a program.

    dying_run.py FOLDER KILLS     ->  FOLDER/straight, FOLDER/killed, and as JSON on stdout where it died

A step is the moment before a call of os that changes or secures a file or folder. The steps at which it dies are drawn
among the first third of those that an undisturbed run takes: what is taken up takes fewer, and comes further each time.
"""

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fedbnn
from fedbnn.runs.experiment import Prepared

CALLS = ("open", "fsync", "replace", "mkdir", "unlink", "rmdir")
CHANGES = (
    "method=fedmd",
    "rounds=3",
    "partition.clients=2",
    "data.alignment=20",
    "training.warmup_epochs=1",
    "training.local_epochs=1",
    "methods.fedmd.digest_steps=1",
    'models=[{name="mlp"}]',
    "engine.debug=true",
    "faults.straggler=0.2",
    "faults.crash=0.2",
)
CONFIG = fedbnn.load_config(None, CHANGES)


def count_steps(last: int) -> Callable[[], int]:
    """Die at step `last`; what comes back tells how many there were."""
    steps = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1
            return call(*arguments, **named)

        return step

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    return lambda: steps


def run(out: Path, last: int = -1) -> int:
    """In a process of its own, which dies at step `last`: the steps that it took to its end, or -1 if it died."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        steps = count_steps(last)
        try:
            fedbnn.run(CONFIG, out, resume=True)
            os.write(writing, str(steps()).encode())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        taken = told.read()
    status = os.waitpid(process, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return -1
    return int(taken)


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    Prepared.of(CONFIG, [CONFIG.method])  # what this imports, no child has to
    steps = run(folder / "straight")
    chance = random.Random(0)
    drawn = [chance.randrange(steps // 3) for _ in range(kills)]
    died = [last for last in drawn if run(folder / "killed", last) == -1]
    run(folder / "killed")
    print(json.dumps({"steps": steps, "died": died}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
