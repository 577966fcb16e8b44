"""From a configuration to a finished run folder, or to a comparison of several methods and seeds."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn.config import Config, EngineSettings
from fedbnn.data import FederatedData, federate, load_dataset
from fedbnn.data.dataset import fingerprint_of
from fedbnn.data.known import KNOWN
from fedbnn.data.other_inputs import foreign_inputs
from fedbnn.data.sources import obtain
from fedbnn.devices import find_device
from fedbnn.engines import Engine, InProcess, Site, WorkerPool
from fedbnn.errors import UserError
from fedbnn.evaluation import Evaluation
from fedbnn.federation import Federation, Round, roster_of
from fedbnn.method import Method
from fedbnn.methods import METHODS
from fedbnn.report import write_report
from fedbnn.results import assemble, metric_lines
from fedbnn.runs import RunFolder, read_json, write_json
from fedbnn.sites import make_sites, with_ledgers


class Observer:
    """Hears how work goes on. This one says nothing; the command line shows a progress bar."""

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        """A run begins, or goes on after this round (-1: from the start)."""

    def client_done(self, activity: str, round_number: int, client: int) -> None:
        """A client has been updated or evaluated."""

    def round_done(self, record: Round) -> None:
        """A round is finished and on disk."""

    def run_finished(self, result: dict[str, Any]) -> None:
        """A run is finished."""

    def note(self, text: str) -> None:
        """Something the user should know."""


def obtain_data(config: Config) -> None:
    """Download what a configuration names and is not there yet, with a bar of its own."""
    named = {
        "data.source": config.data.source,
        "data.alignment_source": config.data.alignment_source,
        "evaluation.foreign": config.evaluation.foreign,
    }
    for field, name in named.items():
        if name in KNOWN:
            obtain(field, name)


@dataclass(frozen=True)
class Prepared:
    """Data loaded and dealt, every architecture tried, every method's demands met: nothing is written yet."""

    data: FederatedData
    sites: Sequence[Site]
    manifest: dict[str, Any]

    @classmethod
    def of(cls, config: Config, methods: Sequence[str]) -> "Prepared":
        data = federate(load_dataset(config.data), config.data, config.partition, config.seed)
        split, source = config.evaluation.split, config.evaluation.foreign
        foreign = foreign_inputs(source, config.data, data.dataset.input_shape) if source else None
        manifest = data.manifest()
        if foreign is not None:
            manifest |= {"foreign": source, "foreign_fingerprint": fingerprint_of({"foreign": foreign})}
        sites = make_sites(
            data,
            config.models,
            config.training,
            rounds=config.rounds,
            seed=config.seed,
            split=split,
            privacy=config.privacy,
            foreign=foreign,
        )
        prepared = cls(data, sites, manifest)
        for name in methods:
            prepared.check(config.with_method(name).chosen())
        return prepared

    def check(self, method: Method[Any, Any]) -> None:
        """Raise a UserError if this method cannot run on this federation."""
        method.server_init(roster_of(self.sites))
        for site in self.sites:
            method.check_client(site.client)

    def refusal(self, config: Config, method: str) -> str:
        """Why this method cannot run on this federation; empty when it can."""
        try:
            self.check(config.with_method(method).chosen())
        except UserError as error:
            return str(error)
        return ""


def make_engine(settings: EngineSettings) -> Engine:
    """The engine of these settings; a pool lives until it is closed and serves any number of runs."""
    if settings.debug:
        return InProcess(settings.device)
    # Every process that uses a GPU takes some of its memory, and one keeps it busy.
    on_cpu = find_device(settings.device).type == "cpu"
    return WorkerPool(settings.workers or (_cores() if on_cpu else 1), settings.device)


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    config: Config, out: Path, *, resume: bool = False, observer: Observer | None = None, engine: Engine | None = None
) -> dict[str, Any]:
    """Run one configuration into the folder `out`; its result. The folder also gets a report.

    An `engine` that is given is not closed: one pool of workers can serve many runs.
    """
    if engine is None:
        find_device(config.engine.device)  # one that is not here is told before any work
    prepared = Prepared.of(config, [config.method])
    folder = RunFolder.open(out, config.to_json(), prepared.manifest, resume=resume)
    with folder.locked(), nullcontext(engine) if engine else closing(make_engine(config.engine)) as used:
        result = _run(config, prepared, folder, used, config.method, observer or Observer())
    write_report(out)
    return result


def _check_comparison_folder(out: Path) -> None:
    """Refuse a place that holds something else than a comparison."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    if out.exists() and any(out.iterdir()):
        if not (out / "comparison.json").exists():
            raise UserError(f"{out} is not empty and holds no comparison: choose another --out")
        read_json(out / "comparison.json")


def _allowed(config: Config, observer: Observer) -> list[str]:
    """Every method that can run on this federation."""
    prepared = Prepared.of(config, [])
    reasons: dict[str, list[str]] = {}
    for name in METHODS:
        reasons.setdefault(prepared.refusal(config, name).replace(f"method '{name}'", "each"), []).append(name)
    allowed = reasons.pop("", [])
    for reason, names in reasons.items():
        observer.note(f"left out: {', '.join(names)}: {reason}")
    return allowed


def compare(
    config: Config,
    methods: Sequence[str] | None,
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    resume: bool = False,
    observer: Observer | None = None,
) -> list[dict[str, Any]]:
    """Run several methods on identical partitions, seeds and budgets in one pool of workers; all their results.

    Without `methods`, all that this federation allows: those left out, and why, are told to the observer.
    """
    for option, values in (("--methods", methods), ("--seeds", seeds)):
        if values is not None and (len(set(values)) != len(values) or not values):
            raise UserError(f"{option}: name at least one, and each only once")
    find_device(config.engine.device)
    _check_comparison_folder(out)
    observer = observer or Observer()
    if methods is None:
        methods = _allowed(config, observer)
    configs = [[config.with_method(name, seed) for name in methods] for seed in seeds]
    prepared = [Prepared.of(row[0], methods) for row in configs]
    wanted = [
        (one, ready, out / f"{one.method}-seed{one.seed}")
        for row, ready in zip(configs, prepared, strict=True)
        for one in row
    ]
    for one, ready, path in wanted:
        RunFolder.check(path, one.to_json(), ready.manifest, resume=resume)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made: {error.strerror}; choose another --out") from None
    runs = [{"method": one.method, "seed": one.seed, "folder": path.name} for one, _, path in wanted]
    write_json(out / "comparison.json", {"runs": runs})
    jobs = [
        (one, ready, RunFolder.open(path, one.to_json(), ready.manifest, resume=resume)) for one, ready, path in wanted
    ]
    results = []
    with closing(make_engine(config.engine)) as engine:
        for number, (one, ready, folder) in enumerate(jobs, 1):
            title = f"{one.method} ({number} of {len(jobs)})" + (f", seed {one.seed}" if len(seeds) > 1 else "")
            with folder.locked():
                results.append(_run(one, ready, folder, engine, title, observer))
    for _, _, folder in jobs:
        write_report(folder.path)
    write_report(out)
    return results


def _run(
    config: Config, prepared: Prepared, folder: RunFolder, engine: Engine, title: str, observer: Observer
) -> dict[str, Any]:
    """Run, or go on with, one configuration; what a finished folder already says is not worked out again."""
    if folder.finished:
        done: dict[str, Any] = read_json(folder.path / "result.json")
        observer.note(f"{folder.path} is finished already; its result is shown (delete the folder to run it again)")
        return done
    sites = with_ledgers(prepared.sites, Path(config.privacy.ledgers or folder.path / "ledgers"))
    federation = Federation(config.chosen(), sites, seed=config.seed, participation=config.participation, engine=engine)
    seconds = 0.0
    if checkpoint := folder.latest_checkpoint():
        for problem in checkpoint.problems:
            observer.note(f"{problem}; going on from round {checkpoint.round_number} instead")
        federation.load(checkpoint.folder, checkpoint.round_number)
        seconds = checkpoint.seconds
    folder.forget_after(federation.round_number)
    observer.run_started(title, config, len(sites), federation.round_number)
    final: Mapping[int, Mapping[str, Evaluation]] = {}
    while federation.round_number < config.rounds:
        number = federation.round_number + 1
        last = number == config.rounds
        scored = number % config.evaluation.every == 0 or last
        record = federation.step(evaluate=scored, listener=observer.client_done, foreign=last)
        seconds, final = seconds + record.seconds, record.scores
        folder.append(metric_lines(record, sites))
        if number % config.checkpoint_every == 0 or last:
            folder.save_checkpoint(number, seconds, federation.save)
        for client, turn in record.turns.items():
            if turn.rejected:
                observer.note(f"round {number}: the reply of client {client} was not let in: {turn.rejected}")
        observer.round_done(record)
    final = final or federation.evaluate(foreign=True)
    result = assemble(config, prepared.data, sites, folder.metrics(), final, seconds)
    write_json(folder.path / "result.json", result)
    observer.run_finished(result)
    return result
