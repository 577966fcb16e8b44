"""The server of a deployed run: its folder, its waiting for the sites, and all its rounds.

FOLDER/terms.json, alignment.npz, server.toml     what was agreed on, and how long to wait
FOLDER/runs/KEY/checkpoint                        the server's state after the last rounds
FOLDER/runs/KEY/sites.json                        who came with which key and model
FOLDER/runs/KEY/metrics.jsonl                     one line a round and site: bytes, and the scores that it shares
FOLDER/runs/KEY/result.json                       written last
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedbnn.base.errors import UserError
from fedbnn.base.wording import listing
from fedbnn.deployment.alignment import read_alignment
from fedbnn.deployment.flower.attendance import UNKNOWN, Attendance
from fedbnn.deployment.flower.strategy import ASK_AGAIN, GREETING, FederationStrategy
from fedbnn.deployment.server_file import ServerSettings, read_server
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.federation.evaluation import task_scores
from fedbnn.federation.loop import Round
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Roster
from fedbnn.federation.server import Server
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.runs.folder import RunFolder, read_json, write_json
from fedbnn.runs.results import metric_lines

Tell = Callable[[str], None]


def serve(grid: Grid, folder: Path, tell: Tell = print) -> None:
    """Hold the rounds of the run whose terms lie in the folder, or those that are left of it."""
    settings = read_server(folder / "server.toml")
    terms = read_terms(folder / "terms.json", settings.methods)
    method = terms.chosen()
    alignment = read_alignment(folder / "alignment.npz", terms)
    run = RunFolder.open(folder / "runs" / terms.key, terms.to_dict(), {}, resume=True)
    with run.locked():
        if run.finished:
            tell(f"run '{terms.run}' is finished already: {run.path / 'result.json'}; another run needs another name")
            return
        if settings.model is not None:  # a mistake in it is told before anybody is waited for
            build(settings.model, terms.input_shape, terms.outputs)
        attendance = Attendance(terms, tell, settings.models, settings.model)
        _remember(attendance, run.path / "sites.json", terms)
        wait_for_all(attendance, grid, settings.wait, tell)
        roster = Roster(
            names=terms.sites,
            classes=terms.classes,
            alignment=alignment.tensor(),
            models=tuple(attendance.models[client] for client in range(len(terms.sites))),
            rounds=terms.rounds,
            seed=terms.seed,
            privacy=terms.privacy,
            ledgers=folder / "ledgers",
            signers=terms.signers,
            multiplicity=terms.multiplicity,
            run=terms.digest,
        )
        server = _server(method, roster, terms, settings)
        # Not before: with models that the method refuses, the run could never be taken up again.
        _write(attendance, run.path / "sites.json", terms)
        _run_rounds(run, terms, settings, server, attendance, grid, tell)


def wait_for_all(attendance: Attendance, grid: Grid, wait: float, tell: Tell) -> None:
    """Come back when every site has been there; a UserError if that takes longer than `wait` seconds."""
    end, told = time.monotonic() + wait, ""
    while True:
        attendance.greet(grid, min(wait, GREETING))
        if attendance.complete:
            return
        missing = ", ".join(attendance.missing)
        if time.monotonic() > end:
            refused = "; ".join(attendance.refused)
            raise UserError(
                f"after {wait:g} seconds these sites have not come: {missing}" + (f"; {refused}" if refused else "")
            )
        if missing != told:
            tell(f"waiting for {missing}")
            told = missing
        time.sleep(ASK_AGAIN)


def _server(method: Method[Any, Any], roster: Roster, terms: Terms, settings: ServerSettings) -> Server:
    try:
        return Server(
            method,
            roster,
            seed=terms.seed,
            participation=terms.participation,
            patience=settings.patience,
            quorum=settings.quorum,
        )
    except UserError as error:
        if settings.model is not None or len({model.architecture for model in roster.models}) == 1:
            raise
        unknown = [name for name, model in zip(roster.names, roster.models, strict=True) if model.name == UNKNOWN]
        raise UserError(
            "these sites cannot start: in server.toml, [model] with name and options says which architecture all must "
            "have, and sites with another are refused by name; "
            + (f"{listing(unknown)} came with {UNKNOWN}" if unknown else str(error))
        ) from None


def _run_rounds(
    run: RunFolder,
    terms: Terms,
    settings: ServerSettings,
    server: Server,
    attendance: Attendance,
    grid: Grid,
    tell: Tell,
) -> None:
    seconds = 0.0
    if checkpoint := run.latest_checkpoint():
        server.load(checkpoint.folder, checkpoint.round_number)
        seconds = checkpoint.seconds
        tell(f"going on after round {checkpoint.round_number}")
    run.forget_after(server.round_number)

    def finished(record: Round) -> None:
        nonlocal seconds
        seconds += record.seconds
        run.append(metric_lines(record, terms.sites))
        run.save_checkpoint(record.number, seconds, server.save)
        good = sum(not turn.rejected for turn in record.turns.values())
        tell(f"round {record.number} of {terms.rounds}: {good} of {len(terms.sites)} sites, {record.seconds:.1f} s")

    strategy = FederationStrategy(
        terms,
        server,
        attendance,
        went_on=lambda: run.save_part(server.round_number, seconds, server.save),
        timeout=settings.round_timeout,
        tell=tell,
        finished=finished,
    )
    strategy.run_rounds(grid)
    run.conclude({"terms": terms.to_dict(), "sites": _summary(run.metrics(), terms)})
    tell(f"finished: {run.path / 'result.json'}")


def _summary(lines: Sequence[Mapping[str, Any]], terms: Terms) -> dict[str, dict[str, Any]]:
    """For each site: turns, bytes, and the last scores that it shares."""
    summary: dict[str, dict[str, Any]] = {}
    for name in terms.sites:
        turns = [line for line in lines if line["name"] == name and "bytes_up" in line]
        scored = [line for line in lines if line["name"] == name and "nll" in line]
        summary[name] = {
            "turns": sum("rejected" not in line for line in turns),
            "dropped": sum("rejected" in line for line in turns),
            "bytes_up": sum(line["bytes_up"] for line in turns),
            "bytes_down": sum(line["bytes_down"] for line in turns),
            **({score: scored[-1][score] for score in task_scores(regression=terms.regression)} if scored else {}),
        }
    return summary


def _remember(attendance: Attendance, path: Path, terms: Terms) -> None:
    if not path.exists():
        return
    for client, name in enumerate(terms.sites):
        if known := read_json(path).get(name):
            attendance.keys[client] = known["key"]
            attendance.models[client] = ModelSettings(**known["model"])


def _write(attendance: Attendance, path: Path, terms: Terms) -> None:
    known: dict[str, Any] = {
        terms.sites[client]: {"key": attendance.keys[client], "model": asdict(model)}
        for client, model in attendance.models.items()
    }
    write_json(path, known)
