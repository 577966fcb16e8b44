"""A run on Flower's simulation: the same strategy and the same nodes as in a deployment, in Ray's processes."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedbnn.base.devices import find_device
from fedbnn.base.errors import UserError
from fedbnn.deployment.flower.attendance import Attendance
from fedbnn.deployment.flower.client_app import make_app
from fedbnn.deployment.flower.faulty import FaultyStrategy, MortalNode
from fedbnn.deployment.flower.serve import wait_for_all
from fedbnn.deployment.node import Node
from fedbnn.deployment.terms import Terms
from fedbnn.federation.engines import ClientFailure
from fedbnn.federation.loop import roster_of
from fedbnn.federation.server import Server
from fedbnn.federation.sites import place_of, with_ledgers
from fedbnn.runs.config import parse_config
from fedbnn.runs.experiment import Prepared, cores
from fedbnn.runs.journal import Journal

RUN = "simulation"  # its name in the terms
WAIT = 600.0  # seconds for Ray's processes to load what they need


def simulate(journal: Journal, title: str) -> None:
    """Hold all rounds on Flower's simulation, and have them written down."""
    config, folder = journal.config, journal.folder.path.resolve()
    terms = Terms.of(config, journal.data, RUN)
    observer = journal.observer

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, _: Context) -> None:
        attendance = Attendance(terms, lambda _: None)
        wait_for_all(attendance, grid, WAIT, lambda _: None)
        server = Server(
            config.chosen(),
            roster_of(journal.sites),
            seed=config.seed,
            participation=config.participation,
            patience=config.patience,
            quorum=config.quorum,
        )
        strategy = FaultyStrategy(
            terms,
            server,
            attendance,
            faults=config.faults,
            timeout=10 * 86400.0,  # nobody is late who shares a machine
            tell=lambda _: None,  # the journal notes what was dropped
            # After every round: sites save theirs, and refuse to go back to an earlier one.
            finished=lambda record: journal.keep(record, server.save, every=1),
            went_on=lambda: journal.keep_part(server.round_number, server.save),
            listener=observer.client_done,
            failed=_stop,
        )
        journal.resume(title, "flower-sim", server.load)
        strategy.run_rounds(grid)
        if not journal.final:
            strategy.evaluate(grid)

    described = json.dumps(config.to_json())
    ledgers = str(Path(config.privacy.ledgers or folder / "ledgers").resolve())
    gpus = 0.0 if config.engine.device == "cpu" else 1.0
    try:
        with _quiet():
            run_simulation(
                server_app,
                simulated_app(described, str(folder / "sites"), ledgers, config.engine.device),
                num_supernodes=len(journal.sites),
                backend_config={
                    "init_args": {
                        "num_cpus": config.engine.workers or cores(),
                        "include_dashboard": False,
                        "log_to_driver": False,  # it would say of every process that it ends
                    },
                    "client_resources": {"num_cpus": 1, "num_gpus": gpus},
                },
            )
    finally:
        ray.shutdown()


def simulated_app(config: str, folder: str, ledgers: str, device: str) -> ClientApp:
    """The ClientApp of all simulated sites: the configuration (JSON) deals their records, `folder` has their states."""

    def node_of(context: Context, question: Message) -> Node:
        return _nodes(config, folder, ledgers, device)[int(context.node_config["partition-id"])].asked_with(question)

    return make_app(node_of, share_errors=True)


@lru_cache(maxsize=1)
def _nodes(config: str, folder: str, ledgers: str, device: str) -> list[MortalNode]:
    """All sites, once in each of Ray's processes: whichever of them serves a site finds its state on disk."""
    settings = parse_config(json.loads(config))
    prepared = Prepared.of(settings, [settings.method])
    terms = Terms.of(settings, prepared.data, RUN)
    return [
        MortalNode(
            terms, site, place_of(site.client.name, Path(folder)), share_metrics=True, device=find_device(device)
        )
        for site in with_ledgers(prepared.sites, Path(ledgers))
    ]


def _stop(kind: str, text: str) -> None:
    """Whoever simulates wants to see what is wrong, not a run that goes on without half of its clients."""
    raise UserError(text) if kind == "user" else ClientFailure(text)


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower's log would run through the progress bar; what went wrong comes as an exception."""
    logger = logging.getLogger("flwr")
    level, handlers = logger.level, logger.handlers[:]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's 15, clients would wait for whatever else is running
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default; it warns without
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.handlers[:] = handlers
