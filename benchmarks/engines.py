"""What an engine adds to the arithmetic of a round, and what a client sends and receives; as ratios.

    python benchmarks/engines.py [--json FILE] [--rounds N] [--clients N] [--deployment-nodes N] [--deployment-rounds N]
                                 [--skip PART ...]

Time. FedBNN on the digits federation. The warm-up and what is scored are not measured. Of a round that takes `wall`
seconds on some cores,
    arithmetic = (sum of the seconds that the clients' turns themselves took) / cores
    overhead   = wall - arithmetic
so what is waited for, say because cores are not equally busy at the end, is overhead. In process and in the pool the
rounds take turns, so a busy machine slows them alike. Of a deployment, all nodes share the cores of this machine and
their clocks also count the time for which they wait for each other: there the turns are those of the same clients in
process, right before and right after.

Bytes. One round of one client, up and down: the numbers of our messages, and what Flower makes of them when it
serialises a message (its records, names, hashes and facts included).
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedbnn.federation.engines import InProcess, WorkerPool
from fedbnn.federation.loop import Federation, Round
from fedbnn.federation.message import Message, shape_of
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Roster
from fedbnn.federation.server import Server
from fedbnn.methods import FedAvg, FedBNN
from fedbnn.models.architectures import ModelSettings
from fedbnn.runs.config import Config
from fedbnn.runs.experiment import Prepared, cores, run
from fedbnn.runs.observer import Observer

PARTS = ("local", "simulation", "deployment", "bytes")
IN_PROCESS, POOL, SIMULATION, DEPLOYMENT = "in process", "worker pool", "Flower simulation", "Flower deployment"
BAR = 150
POINTS, CLASSES = 2000, 10
SHAPES = {"vgg9": (3, 32, 32), "cnn3": (1, 28, 28)}
PATIENCE = 1800.0  # seconds for a deployed run

Results = dict[str, Any]


def federation_of(clients: int, rounds: int) -> Config:
    """The demonstration's federation; one more round than is measured, since the last is always scored."""
    config = Config()
    return replace(
        config,
        rounds=rounds + 1,
        partition=replace(config.partition, clients=clients),
        evaluation=replace(config.evaluation, every=rounds + 1),
    )


@dataclass(frozen=True)
class Measured:
    """Rounds of an engine: seconds each took, seconds of all its clients' turns, seconds before the first began."""

    clients: int
    cores: int
    wall: Sequence[float]
    turns: Sequence[float]
    start: float

    def results(self) -> Results:
        ideal = [turns / self.cores for turns in self.turns]
        ratios = [(wall - one) / one for wall, one in zip(self.wall, ideal, strict=True)]
        arithmetic = statistics.median(ideal)
        return {
            "clients": self.clients,
            "cores": self.cores,
            "rounds": len(ratios),
            "overhead / arithmetic": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "overhead per client, seconds": (statistics.median(self.wall) - arithmetic) / self.clients,
            "arithmetic per client, seconds": statistics.median(self.turns) / self.clients,
            "start / arithmetic of a round": self.start / arithmetic,
            "start, seconds": self.start,
        }


def turns_of(record: Round) -> float:
    return sum(turn.seconds for turn in record.turns.values())


def local(config: Config, rounds: int) -> dict[str, Measured]:
    """Both engines of our own, round by round."""
    sites = Prepared.of(config, [config.method]).sites
    workers = {IN_PROCESS: 1, POOL: cores()}
    federations: dict[str, Federation] = {}
    start: dict[str, float] = {}
    records: dict[str, list[Round]] = {name: [] for name in workers}
    makers: dict[str, Callable[[], InProcess | WorkerPool]] = {
        IN_PROCESS: InProcess,
        POOL: lambda: WorkerPool(workers[POOL]),
    }
    for name, make in makers.items():
        begun = time.perf_counter()
        federations[name] = Federation(config.chosen(), sites, engine=make())
        start[name] = time.perf_counter() - begun
    with closing(federations[POOL]):
        for number in range(rounds + 1):
            for name in (IN_PROCESS, POOL) if number % 2 else (POOL, IN_PROCESS):
                records[name].append(federations[name].step(evaluate=False))
    return {
        name: Measured(
            clients=len(sites),
            cores=workers[name],
            wall=[one.seconds for one in several[1:]],
            turns=[turns_of(one) for one in several[1:]],
            start=start[name],
        )
        for name, several in records.items()
    }


class Watch(Observer):
    """Remembers when a run's first round began, and all its rounds."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.start = 0.0
        self.rounds: list[Round] = []

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        self.start = time.perf_counter() - self.begun

    def round_done(self, record: Round) -> None:
        self.rounds.append(record)


def simulation(config: Config, rounds: int) -> Measured:
    """Flower's simulation; the start is that of Ray and of its processes, and every node's first word."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        on_flower = replace(config, engine=replace(config.engine, kind="flower-sim"))
        run(on_flower, Path(folder) / "run", observer=watch)
    measured = watch.rounds[1 : rounds + 1]
    return Measured(
        clients=config.partition.clients,
        cores=cores(),
        wall=[one.seconds for one in measured],
        turns=[turns_of(one) for one in measured],
        start=watch.start,
    )


def deployment(config: Config, rounds: int) -> Measured:
    """A deployment on loopback with TLS and keys; the start is that of link, nodes and run, and every node's name."""
    reference = Federation(config.chosen(), Prepared.of(config, [config.method]).sites)
    before = [reference.step(evaluate=False) for _ in range(rounds + 1)][1:]
    wall, start = deployed_rounds(config, rounds)
    after = [reference.step(evaluate=False) for _ in range(rounds)]
    turns = statistics.median(turns_of(record) for record in before + after)
    return Measured(config.partition.clients, cores(), wall, [turns] * rounds, start)


def deployed_rounds(config: Config, rounds: int) -> tuple[list[float], float]:
    """Seconds of each measured round, and of what was before the first of all; the run is stopped after these."""
    from fedbnn.deployment.trial.init import write_federation
    from fedbnn.deployment.trial.loopback import Loopback, LoopbackFailure

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "federation"
        terms = write_federation(folder, config)
        begun, first = time.perf_counter(), 0.0
        with Loopback(folder, terms.sites) as loopback:
            loopback.start_link()
            loopback.start_nodes()
            submission = loopback.submit()
            for line in submission.lines(PATIENCE):
                number = re.search(r"round (\d+) of", line)
                if number and number[1] == "0":
                    first = time.perf_counter() - begun
                if number and number[1] == str(rounds):
                    break
            else:
                raise LoopbackFailure(f"the run ended too early:\n{submission.output()[-2000:]}")
        metrics = (folder / "server" / "runs" / terms.key / "metrics.jsonl").read_text(encoding="utf-8")
    elapsed = {line["round"]: line["elapsed"] for line in map(json.loads, metrics.splitlines())}
    return [elapsed[number] for number in range(1, rounds + 1)], first - elapsed[0]


def sizes_of(method: Method[Any, Any], model: str) -> dict[str, int]:
    """Bytes of a client's messages in a round; the numbers in them are random, their size does not depend on them."""
    alignment = torch.zeros(POINTS, *SHAPES[model])
    roster = Roster(("client",), CLASSES, alignment, (ModelSettings(model),), rounds=1, seed=0)
    server = Server(method, roster)
    random = torch.Generator().manual_seed(0)
    shapes = {name: shape_of(form) for name, form in method.expected_upload(roster, 0).items()}
    up = Message({name: torch.rand(shape, generator=random).softmax(-1) for name, shape in shapes.items()})
    assert not server.refusal(0, up)
    server.take_in({0: up})
    down = server.messages([0])[0]
    flower_up, flower_down = serialised(up, down)
    return {"up": up.nbytes, "down": down.nbytes, "Flower, up": flower_up, "Flower, down": flower_down}


def serialised(up: Message, down: Message) -> tuple[int, int]:
    """What Flower makes of both: of all objects that a message is taken apart to."""
    from flwr.app import Message as FlowerMessage
    from flwr.app import MessageType
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.task_identity import TaskIdentity

    from fedbnn.deployment.flower.wire import packed

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def size(message: FlowerMessage) -> int:
        return sum(len(one.deflate()) for one in get_all_nested_objects(message).values())

    facts = {"round": 1, "terms": "0" * 64}  # as the strategy sends them
    question = FlowerMessage(packed(down, facts), dst_node_id=1, message_type=MessageType.TRAIN, ttl=3600.0)
    question.metadata.__dict__["_message_id"] = question.object_id
    answer = FlowerMessage(packed(up, {"info": {"loss": 0.123456789}, "seconds": 0.123456789}), reply_to=question)
    return size(answer), size(question)


def message_sizes() -> Results:
    found: Results = {}
    methods: tuple[Method[Any, Any], ...] = (FedBNN(), FedAvg())
    for model in SHAPES:
        sizes = {method.name: sizes_of(method, model) for method in methods}
        ours, theirs = sizes["fedbnn"], sizes["fedavg"]
        found[model] = {
            **sizes,
            "fedavg / fedbnn": (theirs["up"] + theirs["down"]) / (ours["up"] + ours["down"]),
            "fedavg / fedbnn, Flower": (theirs["Flower, up"] + theirs["Flower, down"])
            / (ours["Flower, up"] + ours["Flower, down"]),
        }
    return found


def rounded(number: float) -> str:
    """Two digits that say something, and no exponent where none is needed."""
    return f"{float(f'{number:.2g}'):g}"


def shown(seconds: float) -> str:
    return f"{rounded(seconds)} s" if seconds >= 1 else f"{rounded(1e3 * seconds)} ms"


def overhead_table(results: Mapping[str, Results]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| engine | clients | cores | overhead / arithmetic | least and most | per client | start, in rounds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in results.items():
        lines.append(
            f"| {name} | {one['clients']} | {one['cores']} | {rounded(one['overhead / arithmetic'])} "
            f"| {rounded(one['least'])} to {rounded(one['most'])} | {shown(one['overhead per client, seconds'])} "
            f"| {rounded(one['start / arithmetic of a round'])} ({shown(one['start, seconds'])}) |"
        )
    return lines


def sizes_table(results: Mapping[str, Results]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| model | bytes | fedbnn up | fedbnn down | fedavg up | fedavg down | fedavg / fedbnn |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, found in results.items():
        for label, prefix, ratio in (("of the numbers", "", ""), ("as Flower sends them", "Flower, ", ", Flower")):
            sizes = [found[method][f"{prefix}{way}"] for method in ("fedbnn", "fedavg") for way in ("up", "down")]
            columns = " | ".join(f"{size:,}".replace(",", " ") for size in sizes)
            lines.append(f"| {model} | {label} | {columns} | {found[f'fedavg / fedbnn{ratio}']:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds")
    parser.add_argument("--clients", type=int, default=20, help="clients of all engines but the deployment")
    parser.add_argument("--deployment-nodes", type=int, default=20, help="sites of the deployment on loopback")
    parser.add_argument("--deployment-rounds", type=int, default=3, help="measured rounds of the deployment")
    parser.add_argument("--skip", choices=PARTS, nargs="+", default=[], help="parts to leave out")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    rounds, config = arguments.rounds, federation_of(arguments.clients, arguments.rounds)
    measured: dict[str, Measured] = {}
    results: Results = {}
    if "local" not in arguments.skip:
        measured |= local(config, rounds)
    if "simulation" not in arguments.skip:
        measured[SIMULATION] = simulation(config, rounds)
    if "deployment" not in arguments.skip:
        nodes, held = arguments.deployment_nodes, arguments.deployment_rounds
        measured[DEPLOYMENT] = deployment(federation_of(nodes, held), held)
    if measured:
        results["overhead"] = {name: one.results() for name, one in measured.items()}
        arithmetic = ", ".join(f"{one['arithmetic per client, seconds']:.2f}" for one in results["overhead"].values())
        print("\n".join(overhead_table(results["overhead"])), f"\nseconds of a client's turn: {arithmetic}\n")
    if "bytes" not in arguments.skip:
        results["bytes"] = message_sizes()
        ratio = results["bytes"]["vgg9"]["fedavg / fedbnn"]
        print("\n".join(sizes_table(results["bytes"])))
        print(f"vgg9: {'at least' if ratio >= BAR else 'NOT'} {BAR} times less than FedAvg")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
