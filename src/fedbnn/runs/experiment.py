"""From a configuration to a finished run folder, or to a comparison of several methods and seeds."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn.base.arguments import check_kind
from fedbnn.base.devices import find_device
from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded, telling
from fedbnn.base.wording import listing
from fedbnn.data import FederatedData, federate, load_dataset
from fedbnn.data.dataset import fingerprint_of
from fedbnn.data.known import KNOWN
from fedbnn.data.other_inputs import foreign_inputs
from fedbnn.data.sources import obtain
from fedbnn.federation.attack import Attacked, side_of
from fedbnn.federation.engines import Engine, InProcess, Site, WorkerPool
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.method import Method
from fedbnn.federation.sites import make_sites, with_ledgers
from fedbnn.methods import METHODS
from fedbnn.report import write_report
from fedbnn.runs.config import Config, EngineSettings, as_of_today
from fedbnn.runs.folder import PREPROCESSING, Replanned, RunFolder, read_json, write_atomically, write_json
from fedbnn.runs.journal import Journal
from fedbnn.runs.observer import Observer, Observers


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
        chosen = [config.with_method(name).chosen() for name in methods]
        promised = any(method.protects(config.privacy) for method in chosen)
        sites = make_sites(
            data,
            config.models,
            config.training,
            rounds=config.rounds,
            seed=config.seed,
            split=split,
            privacy=config.privacy,
            identified=promised,
            foreign=foreign,
        )
        config.attack.check(len(sites), data.dataset.classes, side=side_of(sites), promised=promised)
        sites = config.attack.on_sites(sites, config.seed)
        prepared = cls(data, sites, manifest)
        for method in chosen:
            prepared.check(method)
        return prepared

    def tell(self, config: Config, methods: Sequence[str], observer: Observer) -> None:
        """What was guessed of a table and, unless its records are under a promise, what is odd about them."""
        promised = any(config.with_method(name).chosen().protects(config.privacy) for name in methods)
        for text in (*self.data.told, *(() if promised else (*self.data.oddities, *self._unscored()))):
            observer.note(text)

    def _unscored(self) -> list[str]:
        names = [site.client.name for site in self.sites if not site.scored]
        split = self.sites[0].split
        return [f"unscored for want of {split} records of their own: {listing(names)}"] if names else []

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
        return InProcess(settings.device, settings.in_memory)
    # Every process that uses a GPU takes some of its memory, and one keeps it busy.
    on_cpu = find_device(settings.device).type == "cpu"
    return WorkerPool(settings.workers or (cores() if on_cpu else 1), settings.device, settings.in_memory)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def more_rounds(config: Config) -> Replanned:
    """Why a run of this configuration, but with fewer rounds, cannot go on to its rounds; empty where it can."""

    def reason(before: int, now: int) -> str:
        method = config.chosen()
        if method.protects(config.privacy) is not None:
            return "its privacy budget was divided among the rounds that were planned"
        return method.replanned(before, now)

    return reason


Drive = Callable[[Journal, str], None]
"""Holds all rounds of a run and has them written down; the text is the run's title."""


def run(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    observer: Observer | Sequence[Observer] | None = None,
    engine: Engine | None = None,
    drive: Drive | None = None,
) -> dict[str, Any]:
    """Run one configuration into the folder `out`; its result. The folder also gets a report.

    `observer` is one or several who hear how it goes on. An `engine` that is given is not closed: one pool of workers
    can serve many runs. Instead, `drive` may hold the rounds in a way of its own, as Flower does.
    """
    observers = Observers(observer)
    out = _checked(config, out)
    if engine is None:
        find_device(config.engine.device)  # one that is not here is told before any work
    prepared = Prepared.of(config, [config.method])
    observers.check(prepared.sites)
    prepared.tell(config, [config.method], observers)
    replanned = None if drive else more_rounds(config)
    folder = RunFolder.open(
        out, config.to_json(), prepared.manifest, resume=resume, today=as_of_today, replanned=replanned
    )
    with folder.locked():
        if drive:
            result = _run(config, prepared, folder, drive, config.method_name, observers)
        else:
            with nullcontext(engine) if engine else closing(make_engine(config.engine)) as used:
                result = _run(config, prepared, folder, _local(used), config.method_name, observers)
    write_report(out)
    return result


def _checked(config: object, out: str | Path) -> Path:
    """The folder as a path; other kinds of arguments, which a type checker would have found, are told in one line."""
    if not isinstance(config, Config):
        raise UserError(
            f"config: a {type(config).__name__!r} is no fedbnn.Config; make one, e.g. fedbnn.Config(rounds=3), or read "
            "one with fedbnn.load_config"
        )
    if not isinstance(out, str | Path):
        raise UserError(f"out: a {type(out).__name__!r} is no path of a folder")
    return expanded(out, "out")


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
    for name in dict.fromkeys([*METHODS, config.method]):
        reasons.setdefault(prepared.refusal(config, name).replace(f"method '{name}'", "each"), []).append(name)
    allowed = reasons.pop("", [])
    for reason, names in reasons.items():
        observer.note(f"left out: {', '.join(names)}: {reason}")
    return allowed


def compare(
    config: Config,
    methods: Sequence[str] | None,
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    resume: bool = False,
    observer: Observer | Sequence[Observer] | None = None,
) -> list[dict[str, Any]]:
    """Run several methods on identical partitions, seeds and budgets in one pool of workers; all their results.

    Without `methods`, all that this federation allows: those left out, and why, are told to the observer.
    """
    observer, out = Observers(observer), _checked(config, out)
    check_kind("methods", methods, (list, tuple, type(None)), "a list of their names")
    named = methods and [config.with_method(name).method_name for name in methods]
    for option, values in (("--methods", named), ("--seeds", seeds)):
        if values is not None and (len(set(values)) != len(values) or not values):
            raise UserError(f"{option}: name at least one, and each only once")
    if config.engine.kind != "local":
        raise UserError(f"engine.kind = '{config.engine.kind}': methods are compared on the local engine; leave it out")
    find_device(config.engine.device)
    _check_comparison_folder(out)
    if methods is None:
        methods = _allowed(config, observer)
    configs = [[config.with_method(name, seed) for name in methods] for seed in seeds]
    prepared = [Prepared.of(row[0], methods) for row in configs]
    for ready in prepared:
        observer.check(ready.sites)
    prepared[0].tell(config, methods, observer)
    wanted = [
        (one, ready, out / f"{one.method_name}-seed{one.seed}")
        for row, ready in zip(configs, prepared, strict=True)
        for one in row
    ]
    for one, ready, path in wanted:
        RunFolder.check(
            path, one.to_json(), ready.manifest, resume=resume, today=as_of_today, replanned=more_rounds(one)
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made: {error.strerror}; choose another --out") from None
    runs = [{"method": one.method_name, "seed": one.seed, "folder": path.name} for one, _, path in wanted]
    with telling(out):
        write_json(out / "comparison.json", {"runs": runs})
    jobs = []
    for one, ready, path in wanted:
        folder = RunFolder.open(
            path, one.to_json(), ready.manifest, resume=resume, today=as_of_today, replanned=more_rounds(one)
        )
        jobs.append((one, ready, folder))
    results = []
    with closing(make_engine(config.engine)) as engine:
        for number, (one, ready, folder) in enumerate(jobs, 1):
            title = f"{one.method_name} ({number} of {len(jobs)})" + (f", seed {one.seed}" if len(seeds) > 1 else "")
            with folder.locked():
                results.append(_run(one, ready, folder, _local(engine), title, observer))
    for _, _, folder in jobs:
        write_report(folder.path)
    write_report(out)
    return results


def _local(engine: Engine) -> Drive:
    """The round loop on an engine."""

    def drive(journal: Journal, title: str) -> None:
        config = journal.config
        federation = Federation(
            config.chosen(),
            journal.sites,
            seed=config.seed,
            participation=config.participation,
            patience=config.patience,
            quorum=config.quorum,
            faults=config.faults,
            engine=Attacked(engine, config.attack) if config.attack.on else engine,
        )
        journal.resume(title, "local", federation.load)
        while federation.round_number < config.rounds and not journal.stopped:
            number = federation.round_number + 1
            last = number == config.rounds
            record = federation.step(journal.is_scored(number), journal.observer.client_done, foreign=last)
            journal.keep(record, federation.save)
        journal.final = journal.final or federation.evaluate(foreign=True)

    return drive


def _run(
    config: Config, prepared: Prepared, folder: RunFolder, drive: Drive, title: str, observer: Observer
) -> dict[str, Any]:
    """Run, or go on with, one configuration; what a finished folder already says is not worked out again."""
    folder.plan(config.to_json())
    if folder.finished:
        done: dict[str, Any] = read_json(folder.path / "result.json")
        observer.note(f"{folder.path} is finished already; its result is shown (delete the folder to run it again)")
        return done
    sites = with_ledgers(prepared.sites, Path(config.privacy.ledgers or folder.path / "ledgers"))
    if prepared.data.coding is not None:
        with telling(folder.path):
            write_atomically(folder.path / PREPROCESSING, prepared.data.coding.to_json())
    journal = Journal(config, prepared.data, sites, folder, observer)
    folder.forget_failure()
    try:
        drive(journal, title)
        return journal.conclude()
    except UserError:  # told in a line, and to be mended: nothing has failed
        raise
    except Exception as error:
        folder.failed(error)
        raise
