"""How many clients' turns of FedAvg a second: ours, Flower's own simulation and pfl-research, side by side.

    python -m benchmarks.throughput [--json FILE] [--records N ...] [--blocks N] [--rounds N ...] [--pfl PYTHON]

The work. 100 clients with so many made-up records of 28 x 28 each, the network cnn2, 10 clients a round, each an epoch
of Adam in minibatches of 32, on two cores with a thread each; nothing is scored. The others are used as their users
would: the network in plain torch, `benchmarks/fedavg`. Ours is `WorkerPool(2)`. Beside them, plain torch alone does the
same turns in two processes and nothing else, which tells arithmetic from what a library adds.

The first round is the same for all: every client from the same weights, minibatch by minibatch. What it leaves says
whether all do the same arithmetic; it is timed with starting up, apart. Then blocks of rounds take turns, in a new
random order each time, so a busy machine slows them alike. A ratio is of one block and ours of the same turn. Core time
is what the kernel counts for all processes of one: it leaves out what is waited for, and who else has the cores.

`--pfl` is the Python of an environment with pfl; its dependencies are not ours. Whoever is not installed is left out.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.fedavg.plain import ANSWER, FIRST
from fedbnn.base.randomness import Stream
from fedbnn.data import DataSettings, PartitionSettings, federate
from fedbnn.data.dataset import Dataset
from fedbnn.federation.engines import Site, WorkerPool
from fedbnn.federation.loop import Federation
from fedbnn.federation.sites import make_sites
from fedbnn.methods import FedAvg
from fedbnn.models.network import FlatNetwork, view_of
from fedbnn.models.training import TrainingSettings

ROOT = Path(__file__).resolve().parents[1]
OURS, FLOWER, PFL, ALONE = "fedbnn", "Flower's simulation", "pfl-research", "plain torch alone"
CLIENTS, PARTICIPATION, CORES = 100, 0.1, 2
BATCH, LEARNING_RATE = 32, 1e-3
RECORDS = (50, 600)  # a client; with 600 it is as many as MNIST has
ROUNDS = (5, 2)  # in a block
SAME = 1e-3  # by which weights after the first round may differ, as a part of how far they went
START = "start and first round, seconds"
Results = dict[str, Any]
Blocks = Mapping[str, Sequence[float]]


class Side(Protocol):
    """One of those that are compared."""

    start: float  # seconds before it can hold a round

    def rounds(self, count: int) -> float:
        """Hold so many rounds; seconds that they took."""

    def processes(self) -> set[int]:
        """All that it runs in."""

    def close(self) -> None: ...


class Ours:
    def __init__(self, sites: Sequence[Site]) -> None:
        begun = time.perf_counter()
        method = FedAvg(learning_rate=LEARNING_RATE)
        self.engine = WorkerPool(CORES)
        self.federation = Federation(method, sites, participation=PARTICIPATION, engine=self.engine)
        self.turns: list[float] = []  # seconds of the clients' turns of each round
        self.start = time.perf_counter() - begun

    def rounds(self, count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            record = self.federation.step(evaluate=False)
            self.turns.append(sum(turn.seconds for turn in record.turns.values()))
        return time.perf_counter() - begun

    def processes(self) -> set[int]:
        return {os.getpid(), *self.engine.process_ids}

    def weights(self) -> list[Tensor]:
        return pieces(self.federation.roster.network(0), self.federation.server.tensors()["weights"])

    def close(self) -> None:
        self.federation.close()


class Peer:
    """Another library in processes of its own, which hold rounds when they are told."""

    def __init__(self, module: str, folder: Path, python: str, environments: Sequence[Mapping[str, str]]) -> None:
        begun = time.perf_counter()
        command = [python, "-c", f"from benchmarks.fedavg.{module} import main; main({str(folder)!r})"]
        self._log = (folder / f"{module}.log").open("w", encoding="utf-8")
        self._processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_of(python), **one},
            )
            for one in environments
        ]
        for process in self._processes:
            self._answer(process)
        self.start = time.perf_counter() - begun

    def rounds(self, count: int) -> float:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        return max(float(self._answer(process)) for process in self._processes)

    def processes(self) -> set[int]:
        return descendants({process.pid for process in self._processes})

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            process.wait(timeout=120)
        self._log.close()

    def _answer(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER).strip()
        raise SystemExit(f"a peer has ended:\n{Path(self._log.name).read_text(encoding='utf-8')[-3000:]}")


def descendants(processes: set[int]) -> set[int]:
    """These and all that they have started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one that has ended since
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = set(processes)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def core_seconds(processes: set[int]) -> float:
    """How long cores have been at work for them, whoever else they worked for."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def path_of(python: str) -> str:
    """Where that Python looks for modules: ours see this one's, others nothing but the benchmark itself."""
    return os.pathsep.join([str(ROOT), *(sys.path if python == sys.executable else [])])


def federation_of(records: int) -> list[Site]:
    """100 clients with so many records of chance each."""
    chance, count, test = np.random.default_rng(0), CLIENTS * records + 20, 20
    data = Dataset(
        "made up",
        chance.random((count, 1, 28, 28), dtype=np.float32),
        np.arange(count, dtype=np.int64) % 10,
        chance.random((test, 1, 28, 28), dtype=np.float32),
        np.arange(test, dtype=np.int64) % 10,
        tuple(str(name) for name in range(10)),
    )
    partition = PartitionSettings(kind="iid", clients=CLIENTS, records_per_client=records)
    dealt = federate(data, DataSettings(alignment=10), partition, seed=0)
    return make_sites(dealt, ["cnn2"], TrainingSettings(warmup_epochs=1, local_epochs=1, batch_size=BATCH))


def pieces(network: FlatNetwork, weights: Tensor) -> list[Tensor]:
    """A flat vector of weights as the network's parameters."""
    shapes = [(one, network.spans[name]) for name, one in network.module.named_parameters()]
    return [view_of(weights, span.start, parameter.shape).contiguous() for parameter, span in shapes]


def hand_over(folder: Path, sites: Sequence[Site], first: Sequence[Tensor]) -> None:
    """What peers read: settings, weights to begin with, and records in the order in which ours are used first."""
    x, y = [], []
    for site in sites:
        train = site.client.train
        order = Stream((0, "update", 0, site.client.index)).child("order").torch()
        taken = torch.randperm(len(train), generator=order)
        x.append(train.x[taken].contiguous().numpy())
        y.append(train.y[taken].numpy())
    np.savez(folder / "records.npz", x=np.stack(x), y=np.stack(y))
    np.savez(folder / "initial.npz", **{str(number): one.numpy() for number, one in enumerate(first)})
    settings = {
        "clients": CLIENTS,
        "participation": PARTICIPATION,
        "cores": CORES,
        "batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")


def apart(ours: Sequence[Tensor], before: Sequence[Tensor], folder: Path, peer: str) -> float:
    """How far a peer's weights after the first round are from ours, as a part of how far ours went."""
    with np.load(folder / FIRST.format(peer=peer)) as file:
        theirs = [torch.from_numpy(file[str(number)]) for number in range(len(ours))]
    between = sum(float((a - b).square().sum()) for a, b in zip(ours, theirs, strict=True))
    went = sum(float((a - b).square().sum()) for a, b in zip(ours, before, strict=True))
    return float((between / went) ** 0.5)


def workers(count: int) -> list[dict[str, str]]:
    """The environments of pfl's processes, with ports that are free."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    return [
        {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank), "PFL_PYTORCH_DEVICE": "cpu"}
        for rank in range(count)
    ]


def measure(records: int, blocks: int, rounds: int, pfl: str | None) -> Results:
    sites = federation_of(records)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ours = stack.enter_context(closing(Ours(sites)))
        before = [one.clone() for one in ours.weights()]
        hand_over(folder, sites, before)
        ranks = [{"ALONE_RANK": str(rank)} for rank in range(CORES)]
        makers: dict[str, Callable[[], Side]] = {OURS: lambda: ours}
        if find_spec("flwr"):
            makers[FLOWER] = lambda: stack.enter_context(closing(Peer("flower", folder, sys.executable, [{}])))
        if pfl:
            makers[PFL] = lambda: stack.enter_context(closing(Peer("pfl", folder, pfl, workers(CORES))))
        makers[ALONE] = lambda: stack.enter_context(closing(Peer("alone", folder, sys.executable, ranks)))
        sides, start = {}, {}
        for one, make in makers.items():
            sides[one] = make()
            start[one] = sides[one].start + sides[one].rounds(1)
        differ = {
            name: apart(ours.weights(), before, folder, peer)
            for name, peer in ((FLOWER, "flower"), (PFL, "pfl"))
            if name in sides
        }
        if max(differ.values(), default=0.0) > SAME:
            raise SystemExit(f"not the same arithmetic: after the first round weights differ by {differ}")
        for side in sides.values():
            side.rounds(1)  # the first with a share of the clients, which has costs of its own
        ours.turns.clear()
        times: dict[str, list[float]] = {name: [] for name in sides}
        work: dict[str, list[float]] = {name: [] for name in sides}
        order, names = random.Random(0), list(sides)
        for _ in range(blocks):
            order.shuffle(names)
            for one in names:
                processes = sides[one].processes()
                before_it = core_seconds(processes)
                times[one].append(sides[one].rounds(rounds) / rounds)
                work[one].append((core_seconds(processes) - before_it) / rounds)
        return {
            "records a client": records,
            "blocks": blocks,
            "rounds a block": rounds,
            "turns of ours / cores / round": statistics.median(
                sum(turns) / CORES / (rounds * seconds)
                for turns, seconds in zip(in_parts(ours.turns, rounds), times[OURS], strict=True)
            ),
            "sides": {name: result(name, times, work, start[name], differ.get(name, 0.0)) for name in sides},
        }


def in_parts(several: Sequence[float], size: int) -> list[Sequence[float]]:
    return [several[at : at + size] for at in range(0, len(several), size)]


def result(name: str, times: Blocks, work: Blocks, start: float, differs: float) -> Results:
    ratios = [theirs / ours for theirs, ours in zip(times[name], times[OURS], strict=True)]
    worked = [theirs / ours for theirs, ours in zip(work[name], work[OURS], strict=True)]
    return {
        "round, seconds": statistics.median(times[name]),
        "round, core seconds": statistics.median(work[name]),
        "time of a round / ours": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "core time of a round / ours": statistics.median(worked),
        "least core time": min(worked),
        "most core time": max(worked),
        START: start,
        "weights apart after the first round": differs,
    }


def table(several: Sequence[Results]) -> list[str]:
    """As in docs/engines.md."""
    lines = [
        "| records a client | library | time of a round / ours | least and most | core time / ours | least and most |",
        "|---|---|---|---|---|---|",
    ]
    for one in several:
        for name, found in one["sides"].items():
            if name != OURS:
                lines.append(
                    f"| {one['records a client']} | {name} | {found['time of a round / ours']:.2f} | "
                    f"{found['least']:.2f} to {found['most']:.2f} | {found['core time of a round / ours']:.2f} | "
                    f"{found['least core time']:.2f} to {found['most core time']:.2f} |"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=list(RECORDS), help="of each client")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--rounds", type=int, nargs="+", default=list(ROUNDS), help="in a block, for each of these")
    parser.add_argument("--pfl", help="Python of an environment with pfl-research")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    found = []
    for records, rounds in zip(arguments.records, arguments.rounds, strict=True):
        found.append(measure(records, arguments.blocks, rounds, arguments.pfl))
        print(json.dumps(found[-1], indent=2), flush=True)
    print("\n".join(table(found)))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
