"""Clients spread over worker processes on this machine, one per core, one torch thread each.

A client's state stays in the worker that has the client; only messages and scores cross the pipes. Where only some
clients take part and one worker has too many of them, it leaves states in files for another. Workers are plain
subprocesses, so scripts need no `if __name__ == "__main__"` and a worker outlives one run of many.
"""

import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

from torch import Tensor

from fedbnn.base.devices import find_device
from fedbnn.base.errors import UserError
from fedbnn.federation.engines import frames, handover
from fedbnn.federation.engines.engine import ClientFailure, Reply, Site
from fedbnn.federation.engines.states import IN_MEMORY
from fedbnn.federation.evaluation import Scored, scored_from
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.models.bayes import Prediction
from fedbnn.models.label_prior import Known
from fedbnn.models.regression import Answer, Mixture

# Fresh pages for every large activation cost up to a tenth of a training step; let glibc keep them instead.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
}
_LAST = ("done", "user_error", "failure")  # frames after which a worker waits for its next request
_OVERHEAD = 1e5  # what a record costs beside its arithmetic, in operations


def cost(site: Site) -> float:
    """Relative cost of a client's round: operations of a record times records, plus a fixed part per record."""
    return float(site.operations + _OVERHEAD) * (len(site.client.train) + len(site.client.alignment))


def balanced(costs: Mapping[int, float], workers: int) -> list[list[int]]:
    """Clients to workers: the dearest first, each to the worker with the least so far."""
    shares: list[list[int]] = [[] for _ in range(workers)]
    load = [0.0] * workers
    for client in sorted(costs, key=lambda c: (-costs[c], c)):
        least = min(range(workers), key=load.__getitem__)
        shares[least].append(client)
        load[least] += costs[client]
    return [sorted(share) for share in shares]


def evened(shares: Sequence[Sequence[int]], costs: Mapping[int, float]) -> dict[int, int]:
    """Which clients go to which other worker, so that those with a cost are spread evenly.

    One goes from the busiest worker to the idlest if it costs at most half of what lies between both, the dearest of
    such first. Of shares that are `balanced` and all asked, nobody goes.
    """
    homes = {client: worker for worker, share in enumerate(shares) for client in share if client in costs}
    places = dict(homes)
    while True:
        load = [0.0] * len(shares)
        for client, worker in places.items():
            load[worker] += costs[client]
        busiest, idlest = max(range(len(load)), key=load.__getitem__), min(range(len(load)), key=load.__getitem__)
        half = (load[busiest] - load[idlest]) / 2
        fitting = [client for client, worker in places.items() if worker == busiest and 0 < costs[client] <= half]
        if not fitting:
            return {client: worker for client, worker in places.items() if worker != homes[client]}
        places[max(fitting, key=lambda client: (costs[client], client))] = idlest


class WorkerPool:
    """An Engine over worker processes, which compute on one device and hold `in_memory` clients each at once."""

    def __init__(self, workers: int, device: str = "cpu", in_memory: int = IN_MEMORY) -> None:
        if type(workers) is not int or workers < 1:
            raise UserError(f"workers = {workers!r}: the number of processes, a whole number from 1 up")
        self._device = find_device(device)
        self._in_memory = in_memory
        environment = {**os.environ, **_ENVIRONMENT}
        command = [sys.executable, "-m", "fedbnn.federation.engines.worker"]
        # A session of their own: Ctrl-C reaches this process only, which then ends them in good order.
        self._processes = [
            subprocess.Popen(  # noqa: S603 - our own module with our own interpreter
                command,
                bufsize=0,  # a frame left in a buffer of ours would be invisible to the selector
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            for _ in range(workers)
        ]
        self._folder = tempfile.TemporaryDirectory(prefix="fedbnn-")
        self._costs: dict[int, float] = {}
        self._shares: list[list[int]] = []
        self._busy: set[int] = set()  # workers that have not finished what they were given

    def start(self, method: Method[Any, Any], sites: Sequence[Site], seed: int) -> None:
        before = list(Path(self._folder.name).iterdir())
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        handover.write(folder / "sites", sites)
        self._costs = {site.client.index: cost(site) for site in sites}
        self._shares = balanced(self._costs, len(self._processes))
        cls = type(method)
        header = {
            "request": "start",
            "sys_path": [entry or str(Path.cwd()) for entry in sys.path],
            "folder": str(folder),
            "in_memory": self._in_memory,
            "method": {"class": f"{cls.__module__}:{cls.__qualname__}", "settings": asdict(cast(Any, method))},
            "seed": seed,
            "device": str(self._device),
            "clients": sorted(self._costs),
        }
        self._everyone([{**header, "share": share} for share in self._shares])
        for old in before:  # of the run before, whose clients nobody has any more
            shutil.rmtree(old)

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        for frame in self._exchange(self._to_clients("update", round_number, messages)):
            header = frame.header
            yield header["client"], Reply(Message.from_bytes(frame.payload), header["info"], header["seconds"])

    def evaluate(
        self, round_number: int, messages: Mapping[int, Message], foreign: bool = False
    ) -> Iterator[tuple[int, dict[str, Scored]]]:
        for frame in self._exchange(self._to_clients("evaluate", round_number, messages, foreign=foreign)):
            scores = frame.header["evaluation"]
            yield frame.header["client"], {variant: scored_from(one) for variant, one in scores.items()}

    def predict(
        self,
        client: int,
        x: Tensor,
        round_number: int,
        message: Message,
        variant: str | None = None,
        prior: Known | Sequence[float] | None = None,
    ) -> Answer:
        worker = next(k for k, share in enumerate(self._shares) if client in share)
        request = {"request": "predict", "client": client, "round": round_number, "variant": variant, "prior": prior}
        arrays = {"x": x, **{f"message.{name}": array for name, array in message.arrays.items()}}
        [frame] = self._exchange({worker: [frames.Frame(request, Message(arrays).to_bytes())]})
        found = Message.from_bytes(frame.payload).arrays
        return Mixture(**found) if "means" in found else Prediction(**found)

    def save(self, folder: Path) -> None:
        self._everyone([{"request": "save", "folder": str(folder.resolve())}] * len(self._processes))

    def load(self, folder: Path) -> None:
        self._everyone([{"request": "load", "folder": str(folder.resolve())}] * len(self._processes))

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                cast(IO[bytes], stream).close()
        self._folder.cleanup()

    def _to_clients(
        self, request: str, round_number: int, messages: Mapping[int, Message], **more: Any
    ) -> dict[int, list[frames.Frame]]:
        """One frame a worker and message: what goes to all clients alike crosses each pipe once."""
        self._even_out(messages)
        requests: dict[int, list[frames.Frame]] = {}
        for worker, share in enumerate(self._shares):
            groups: dict[int, list[int]] = {}
            for client in share:
                if client in messages:
                    groups.setdefault(id(messages[client]), []).append(client)
            header = {"request": request, "round": round_number, **more}
            requests[worker] = [
                frames.Frame({**header, "clients": clients}, messages[clients[0]].to_bytes())
                for clients in groups.values()
            ]
        return requests

    def _even_out(self, asked: Collection[int]) -> None:
        """Move clients between workers where those that are asked would keep one of them busy for longer."""
        moves = evened(self._shares, {client: self._costs[client] for client in asked})
        if not moves:
            return
        homes = {client: worker for worker, share in enumerate(self._shares) for client in share}
        for request, places in (("leave", homes), ("take", moves)):
            several: dict[int, list[int]] = {}
            for client in sorted(moves):
                several.setdefault(places[client], []).append(client)
            self._done({worker: {"request": request, "clients": clients} for worker, clients in several.items()})
        homes |= moves
        self._shares = [sorted(c for c in homes if homes[c] == worker) for worker in range(len(self._processes))]

    def _everyone(self, headers: list[dict[str, Any]]) -> None:
        self._done(dict(enumerate(headers)))

    def _done(self, headers: Mapping[int, dict[str, Any]]) -> None:
        """Have workers do what they answer nothing to."""
        for _ in self._exchange({worker: [frames.Frame(header)] for worker, header in headers.items()}):
            pass

    def _exchange(self, requests: Mapping[int, list[frames.Frame]]) -> Iterator[frames.Frame]:
        """Give each worker its requests, one at a time, and yield their result frames as they come."""
        waiting = {worker: list(queue) for worker, queue in requests.items() if queue}
        self._busy.clear()
        try:
            yield from self._answers(waiting)
        except (UserError, ClientFailure, GeneratorExit):
            # What the others still have to say would be taken for answers to the next request.
            for worker in sorted(self._busy):
                self._finish(worker)
            raise

    def _answers(self, waiting: dict[int, list[frames.Frame]]) -> Iterator[frames.Frame]:
        with selectors.DefaultSelector() as selector:
            for worker, queue in waiting.items():
                selector.register(cast(IO[bytes], self._processes[worker].stdout), selectors.EVENT_READ, worker)
                self._give(worker, queue.pop(0))
            while waiting:
                for key, _ in selector.select():
                    worker = key.data
                    frame = self._take(worker)
                    if "done" not in frame.header:
                        yield frame
                    elif waiting[worker]:
                        self._give(worker, waiting[worker].pop(0))
                    else:
                        del waiting[worker]
                        selector.unregister(key.fileobj)

    def _give(self, worker: int, request: frames.Frame) -> None:
        self._busy.add(worker)
        try:
            frames.write(cast(IO[bytes], self._processes[worker].stdin), *request)
        except BrokenPipeError:
            raise self._death(worker) from None

    def _take(self, worker: int) -> frames.Frame:
        frame = frames.read(cast(IO[bytes], self._processes[worker].stdout))
        if frame is None:
            raise self._death(worker)
        if not frame.header.keys().isdisjoint(_LAST):
            self._busy.discard(worker)
        if "user_error" in frame.header:
            raise UserError(frame.header["user_error"])
        if "failure" in frame.header:
            raise ClientFailure(frame.header["failure"])
        return frame

    def _finish(self, worker: int) -> None:
        """Read on to the end of what this worker is doing."""
        while worker in self._busy:
            with suppress(UserError, ClientFailure):
                self._take(worker)

    def _death(self, worker: int) -> ClientFailure:
        self._busy.discard(worker)
        code = self._processes[worker].wait()
        return ClientFailure(
            f"worker process {worker} with clients {self._shares[worker] if self._shares else []} ended with code "
            f"{code} (negative: killed by that signal; -9 is often a lack of memory)"
        )
