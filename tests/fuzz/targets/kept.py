"""What parties keep for later: ledgers, checkpoints, states, a site's folder. Checksums are made right where a file is
only read if they are.
"""

import hashlib
import io
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import fedbnn
from fedbnn.base.checkpoints import Checkpoints
from fedbnn.base.errors import UserError
from fedbnn.cli import privacy_tables
from fedbnn.deployment.node import Node, Request
from fedbnn.deployment.site import load_site
from fedbnn.deployment.site_file import RecordsSettings, SiteSettings, read_site
from fedbnn.deployment.state import remembered_site
from fedbnn.deployment.statement import statement
from fedbnn.deployment.terms import Terms
from fedbnn.federation.engines import ClientFailure
from fedbnn.privacy.ledger import Budget, Cost, Ledger, Limit
from fedbnn.privacy.overview import overview
from fedbnn.report.statement_page import as_data, render
from tests.deployment.deployment_sample import dealt, small_config, small_terms, write_sites
from tests.fuzz.mutations import Form, changed_bytes, json_lines, json_tree, safetensors
from tests.fuzz.targets.target import Prepared, Target, from_file
from tests.runs.run_sample import tiny

DELTA = 1e-5


def write_ledger(folder: Path) -> None:
    with Ledger.open(folder, "f" * 64, "anna", b"r" * 64) as ledger:
        for number in range(3):
            ledger.release(f"r{number}", "inputs", Cost(0.1), [Limit(Budget(3.0, DELTA))], lambda: b"bytes")


def rehashed(data: bytes) -> tuple[bytes, bytes]:
    """The lines as they would be had their owner written them, and the head that belongs to them."""
    previous, lines = "", b""
    found = data.splitlines()
    for line in found:
        written = line + b"\n"
        with suppress(ValueError, TypeError, RecursionError):  # no line that a program writes
            written = json.dumps({**json.loads(line), "previous": previous}).encode() + b"\n"
        previous, lines = hashlib.sha256(written).hexdigest(), lines + written
    return lines, json.dumps({"count": len(found), "sha256": previous}).encode() + b"\n"


def _ledger_file(name: str) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        write_ledger(folder / "one")
        file = folder / "one" / name
        return Prepared(
            [file.read_bytes()], from_file(file, lambda _: told(folder), lambda _: Ledger.read(file.parent))
        )

    return prepare


def told(folder: Path) -> None:
    """Everything that is told of the ledgers in a folder; one that cannot be believed is part of it."""
    found = overview(folder, DELTA)
    Console(file=io.StringIO()).print(privacy_tables.overview(found))
    json.dumps(found.to_dict())
    made = statement(folder, DELTA)
    render(made)
    json.dumps(as_data(made), allow_nan=False)
    if found.broken:
        raise UserError(found.broken[0].problem)


def _believed_ledger(folder: Path) -> Prepared:
    write_ledger(folder / "one")

    def read(data: bytes) -> None:
        lines, head = rehashed(data)
        (folder / "one" / "ledger.jsonl").write_bytes(lines)
        (folder / "one" / "head.json").write_bytes(head)
        told(folder)

    return Prepared([(folder / "one" / "ledger.jsonl").read_bytes()], [read])


def _manifest(folder: Path) -> Prepared:
    checkpoints = Checkpoints(folder, "begin anew")
    checkpoints.save(0, 1.0, lambda place: (place / "state").write_bytes(b"state") and None)
    file = folder / "round-00000" / "manifest.json"
    return Prepared([file.read_bytes()], from_file(file, lambda _: checkpoints.latest()))


def forge(place: Path, name: str, data: bytes) -> None:
    """A file of a checkpoint with a checksum that is right."""
    (place / name).write_bytes(data)
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
    (place / "manifest.json").write_text(json.dumps(manifest))


def site_of(folder: Path) -> tuple[Terms, SiteSettings]:
    terms = small_terms()
    settings = read_site(write_sites(folder / "sites", small_config())[0])
    return terms, SiteSettings(terms.sites[0], RecordsSettings(folder / "records.npz"), alignment=settings.alignment)


def records_of_client(client: int) -> dict[str, np.ndarray]:
    data = dealt(small_config())
    rows = data.client_indices[client]
    return {"x_train": data.dataset.x_train[rows], "y_train": data.dataset.y_train[rows]}


def _site_state(name: str, update: bool = False) -> Callable[[Path], Prepared]:
    """A file of a site's state folder, read for a prediction and, with `update`, for the site's next turn."""

    def prepare(folder: Path) -> Prepared:
        terms, settings = site_of(folder)
        np.savez(folder / "records.npz", **records_of_client(0))
        site, state = load_site(settings, terms), folder / "state"
        node = Node(terms, site, state, share_metrics=False)
        request, x = Request("update", 0, terms.digest), torch.zeros(1, 1, 8, 8)
        node.answer(request)
        [turn] = (node.state.path / "checkpoint").iterdir()
        place = turn if (turn / name).exists() else node.state.path

        def read(data: bytes, work: Callable[[Node], object]) -> None:
            if place == turn:
                forge(place, name, data)
            else:
                (place / name).write_bytes(data)
            work(Node(terms, site, state, share_metrics=False))

        def predict(again: Node) -> None:
            try:
                again.predict(x)
            except ClientFailure as error:  # a state that can be read and computes nothing: the client is named
                raise UserError("a client failed") from error

        readers = [lambda data: read(data, predict)]
        if update:
            readers.append(lambda data: read(data, lambda again: again.answer(request)))
            readers.append(lambda data: read(data, lambda again: again.state.record(0, "update", {})))
        return Prepared([(place / name).read_bytes()], readers)

    return prepare


def _where_a_site_is(folder: Path) -> Prepared:
    site = write_sites(folder / "sites", small_config())[0]
    good = json.dumps({"site": str(site)}).encode()
    return Prepared([good], from_file(folder / "site.json", lambda file: read_site(remembered_site(file.parent))))


@cache
def checkpoint_of_a_run() -> dict[str, bytes]:
    """Every file of a run folder, by its path in it."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        fedbnn.run(tiny("rounds=1", "method=fedavg"), folder)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _run_state(name: str) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        for path, data in checkpoint_of_a_run().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        place = folder / "checkpoint" / "round-00001"
        ready = fedbnn.load(folder)
        known = {"_prepared": ready._prepared}  # the data stay the same: they are dealt once

        def read(data: bytes) -> None:
            forge(place, name, data)
            run = fedbnn.load(folder)
            run.__dict__.update(known)
            try:
                run.predict(0, ready.data.dataset.x_test[:1])
            except ClientFailure as error:
                raise UserError("a client failed") from error

        return Prepared([(place / name).read_bytes()], [read])

    return prepare


def _kept(name: str, reads: str, form: Form, prepare: Callable[[Path], Prepared], share: float = 1.0) -> Target:
    return Target(name, reads, form, prepare, share)


KEPT = (
    _kept("ledger", "a ledger's lines, JSON", json_lines, _ledger_file("ledger.jsonl"), 0.1),
    _kept("believed ledger", "the same with hashes that are right", json_lines, _believed_ledger, 0.1),
    _kept("head", "a ledger's head.json", json_tree, _ledger_file("head.json"), 0.1),
    _kept("records", "hashes of a ledger's records", changed_bytes, _ledger_file("records.bin"), 0.03),
    _kept("release", "a release that a ledger keeps", changed_bytes, _ledger_file("releases/r0.bin"), 0.03),
    _kept("manifest", "a checkpoint's manifest.json", json_tree, _manifest),
    _kept("run's state", "a client's state in a run folder", safetensors, _run_state("client-0000.safetensors"), 0.1),
    _kept("server's state", "the server's state in one", safetensors, _run_state("server.safetensors"), 0.1),
    _kept("turn", "turn.json of a site", json_tree, _site_state("turn.json", update=True), 0.02),
    _kept("reply", "a reply that a site keeps", safetensors, _site_state("reply.safetensors", update=True), 0.02),
    _kept("site's state", "a client's state at a site", safetensors, _site_state("client-0000.safetensors"), 0.02),
    _kept("site's client", "client.json of a site", json_tree, _site_state("client.json", update=True), 0.02),
    _kept("site's metrics", "metrics.jsonl of a site", json_lines, _site_state("metrics.jsonl", update=True), 0.02),
    _kept("site.json", "where a site's file is", json_tree, _where_a_site_is),
)
