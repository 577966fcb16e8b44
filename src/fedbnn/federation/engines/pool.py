"""Clients spread over worker processes on this machine, one per core, one torch thread each.

A client's state stays with the worker that has the client; only messages and scores cross the pipes. Where only some
clients take part and one worker has too many of them, others take over some, whose states are files. Workers are plain
subprocesses, so scripts need no `if __name__ == "__main__"` and a worker outlives one run of many. One that dies is
replaced (`remote`), and results are the same bit for bit.
"""

import selectors
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from fedbnn.base.devices import find_device
from fedbnn.base.errors import UserError
from fedbnn.base.files import telling
from fedbnn.federation.engines import frames, handover
from fedbnn.federation.engines.engine import ClientFailure, Reply, Site
from fedbnn.federation.engines.remote import RemoteWorker
from fedbnn.federation.engines.states import IN_MEMORY, state_file
from fedbnn.federation.evaluation import Scored, scored_from
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.models.bayes import Prediction
from fedbnn.models.label_prior import Known
from fedbnn.models.regression import Answer, Mixture

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
        self._workers = [RemoteWorker() for _ in range(workers)]
        self._folder = tempfile.TemporaryDirectory(prefix="fedbnn-")
        self._costs: dict[int, float] = {}
        self._shares: list[list[int]] = []
        self._states: list[Path] = []  # of each worker, the folder of its clients' states

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that work now, for who measures them; one that has died is replaced by another."""
        return [worker.process.pid for worker in self._workers]

    def start(self, method: Method[Any, Any], sites: Sequence[Site], seed: int) -> None:
        before = list(Path(self._folder.name).iterdir())
        with telling(Path(self._folder.name)):
            folder = Path(tempfile.mkdtemp(dir=self._folder.name))
            handover.write(folder / "sites", sites)
        self._costs = {site.client.index: cost(site) for site in sites}
        self._shares = balanced(self._costs, len(self._workers))
        self._states = [folder / f"states-{number}" for number in range(len(self._workers))]
        for worker in self._workers:
            worker.names = {site.client.index: site.client.name for site in sites}
        cls = type(method)
        header = {
            "request": "start",
            "sys_path": [entry or str(Path.cwd()) for entry in sys.path],
            "sites": str(folder / "sites"),
            "in_memory": self._in_memory,
            "method": {"class": f"{cls.__module__}:{cls.__qualname__}", "settings": asdict(cast(Any, method))},
            "seed": seed,
            "device": str(self._device),
            "clients": sorted(self._costs),
        }
        self._everyone(
            [
                {**header, "share": share, "states": str(states)}
                for share, states in zip(self._shares, self._states, strict=True)
            ]
        )
        for old in before:  # of the run before, whose clients nobody has any more
            shutil.rmtree(old)

    def update(self, round_number: int, messages: Mapping[int, Message]) -> Iterator[tuple[int, Reply]]:
        for frame in self._exchange(self._to_clients("update", round_number, messages)):
            header = frame.header
            yield header["client"], Reply(Message.from_bytes(frame.payload), header["info"], header["seconds"])

    def lose(self, round_number: int, messages: Mapping[int, Message]) -> None:
        for _ in self._exchange(self._to_clients("lose", round_number, messages)):
            pass

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
        self._everyone([{"request": "save", "folder": str(folder.resolve())}] * len(self._workers))

    def load(self, folder: Path) -> None:
        self._everyone([{"request": "load", "folder": str(folder.resolve())}] * len(self._workers))

    def close(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.close()
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
        self._tell("leave", {client: homes[client] for client in moves})
        for client, worker in moves.items():
            old, new = (state_file(self._states[place], client) for place in (homes[client], worker))
            old.replace(new)
        homes |= moves
        self._shares = [sorted(c for c in homes if homes[c] == worker) for worker in range(len(self._workers))]
        for remote, share in zip(self._workers, self._shares, strict=True):
            remote.now_has(share)
        self._tell("take", moves)

    def _tell(self, request: str, places: Mapping[int, int]) -> None:
        """Tell workers of clients that come or go."""
        several: dict[int, list[int]] = {}
        for client in sorted(places):
            several.setdefault(places[client], []).append(client)
        self._done({worker: {"request": request, "clients": clients} for worker, clients in several.items()})

    def _everyone(self, headers: list[dict[str, Any]]) -> None:
        self._done(dict(enumerate(headers)))

    def _done(self, headers: Mapping[int, dict[str, Any]]) -> None:
        """Have workers do what they answer nothing to."""
        for _ in self._exchange({worker: [frames.Frame(header)] for worker, header in headers.items()}):
            pass

    def _exchange(self, requests: Mapping[int, list[frames.Frame]]) -> Iterator[frames.Frame]:
        """Give each worker its requests, one at a time, and yield their result frames as they come."""
        waiting = {worker: list(queue) for worker, queue in requests.items() if queue}
        try:
            yield from self._answers(waiting)
        except (UserError, ClientFailure, GeneratorExit):
            # What the others still have to say would be taken for answers to the next request.
            for worker in self._workers:
                worker.finish()
            raise

    def _answers(self, waiting: dict[int, list[frames.Frame]]) -> Iterator[frames.Frame]:
        with selectors.DefaultSelector() as selector:
            for number, queue in waiting.items():
                self._workers[number].give(queue.pop(0))
                selector.register(self._workers[number].output, selectors.EVENT_READ, number)
            while waiting:
                for key, _ in selector.select():
                    number, worker = key.data, self._workers[key.data]
                    frame = worker.take()
                    if frame is not None and "done" not in frame.header:
                        yield frame
                    elif frame is not None and waiting[number]:
                        worker.give(waiting[number].pop(0))
                    elif frame is not None:
                        del waiting[number]
                        selector.unregister(key.fileobj)
                        continue
                    if worker.output is not key.fileobj:
                        selector.unregister(key.fileobj)
                        selector.register(worker.output, selectors.EVENT_READ, number)
