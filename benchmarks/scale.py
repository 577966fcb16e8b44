"""How memory and time grow with the number of clients, of alignment points and of classes.

    python -m benchmarks.scale [--json FILE] [--clients N ...] [--points N ...] [--classes N ...] [--skip PART ...]

Growth. FedBNN as published (or FedMD): outputs of small networks of two architectures, 10 made-up records of
28 x 28 a client, in two workers. Each federation is a process of its own: the warm-up of all clients, then rounds in
which a tenth takes part. Peak memory is the kernel's count (VmHWM), of the server's process and of the largest worker.
An exponent is the slope of log(value) against log(size) between the two largest sizes: 0 does not grow, 1 is linear.

The memory of the server's process holds the data set itself, and with outputs every client's last ones.

Parts that are skipped stay in the file as they are.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn.data import DataSettings, PartitionSettings, federate
from fedbnn.data.dataset import Dataset
from fedbnn.federation.engines import WorkerPool
from fedbnn.federation.loop import Federation
from fedbnn.federation.sites import make_sites
from fedbnn.methods import METHODS
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import TrainingSettings

PARTS = ("clients", "points", "classes")
MEASURED = {
    "worker, MB": "memory of a worker",
    "server, MB": "of the server's process",
    "round, seconds a client": "a client's turn",
}
RECORDS = 10  # a client
SMALL = (ModelSettings("mlp", options={"hidden": [16]}), ModelSettings("cnn2", options={"channels": [4, 8]}))
Results = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """A federation to be measured."""

    method: str
    clients: int = 200
    points: int = 500
    classes: int = 10
    rounds: int = 3


def made_up(size: Size) -> Dataset:
    """As many records as are needed, of chance."""
    random = np.random.default_rng(0)
    count, test = size.clients * RECORDS + size.points + size.classes, 200
    return Dataset(
        "made up",
        random.random((count, 1, 28, 28), dtype=np.float32),
        np.arange(count, dtype=np.int64) % size.classes,
        random.random((test, 1, 28, 28), dtype=np.float32),
        np.arange(test, dtype=np.int64) % size.classes,
        tuple(str(name) for name in range(size.classes)),
    )


def measured(size: Size) -> Results:
    """One federation in this process: peak memory of it and of its workers, seconds of a client's turn."""
    data = DataSettings(alignment=size.points)
    partition = PartitionSettings(kind="iid", clients=size.clients, records_per_client=RECORDS)
    steps = {"fedmd": {"digest_steps": 5}, "fedbnn_paper": {"prior_steps": 5, "mc_samples": 2}}
    method = METHODS[size.method](**steps[size.method])
    sites = make_sites(
        federate(made_up(size), data, partition, seed=0),
        SMALL,
        TrainingSettings(warmup_epochs=1, local_epochs=1),
        rounds=size.rounds,
    )
    engine = WorkerPool(2)
    begun = time.perf_counter()
    with closing(Federation(method, sites, participation=0.1, engine=engine)) as federation:
        started = time.perf_counter() - begun
        warm = federation.step(evaluate=False)
        rounds = [federation.step(evaluate=False) for _ in range(size.rounds)]
        federation.evaluate()
        workers = max(peak(process) for process in engine.process_ids)
    turns = [one.seconds / len(one.turns) for one in rounds]
    return {
        **asdict(size),
        "server, MB": peak("self"),
        "worker, MB": workers,
        "start, seconds a client": started / size.clients,
        "warm-up, seconds a client": warm.seconds / size.clients,
        "round, seconds a client": statistics.median(turns),
    }


def peak(process: int | str) -> float:
    """Most memory that a process ever had, in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1e3


def alone(size: Size) -> Results:
    """The same in a new process, whose memory no other federation has touched."""
    command = [sys.executable, "-m", "benchmarks.scale", "--one", json.dumps(asdict(size))]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    result: Results = json.loads(found.stdout.splitlines()[-1])
    print(result, flush=True)
    return result


def exponent(results: Sequence[Results], by: str, of: str) -> float:
    """The slope between the two largest sizes, on logarithmic axes."""
    one, two = results[-2:]
    return math.log(two[of] / one[of]) / math.log(two[by] / one[by])


def table(results: Results, part: str) -> list[str]:
    """As in docs/engines.md."""
    lines = [f"| {part} | {' | '.join(MEASURED.values())} |", "|---|---|---|---|"]
    for one in results[part]:
        shown = (
            f"{one['worker, MB']:.0f} MB | {one['server, MB']:.0f} MB | {1e3 * one['round, seconds a client']:.0f} ms"
        )
        lines.append(f"| {one[part]} | {shown} |")
    exponents = " | ".join(f"{results[f'{part}: exponent of {of}']:.2f}" for of in MEASURED)
    return [*lines, f"| exponent | {exponents} |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 200, 2000])
    parser.add_argument("--points", type=int, nargs="+", default=[1000, 5000, 20000])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--method", choices=("fedmd", "fedbnn_paper"), default="fedbnn_paper")
    parser.add_argument("--skip", choices=PARTS, nargs="+", default=[], help="parts to leave out")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(Size(**json.loads(arguments.one)))))
        return
    kept = arguments.json is not None and arguments.json.exists()
    results: Results = json.loads(arguments.json.read_text()) if kept else {}
    sizes = {
        "clients": [Size(arguments.method, clients=n) for n in arguments.clients],
        "points": [Size(arguments.method, clients=50, points=n) for n in arguments.points],
        "classes": [Size(arguments.method, clients=50, classes=n) for n in arguments.classes],
    }
    for part, several in sizes.items():
        if part not in arguments.skip:
            found = [alone(size) for size in several]
            results[part] = found
            results |= {f"{part}: exponent of {of}": exponent(found, part, of) for of in MEASURED}
            print("\n".join(table(results, part)), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
