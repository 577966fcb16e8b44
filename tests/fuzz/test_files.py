"""Files that a party is given: whatever they hold, they are read, or refused in one line that a person can use."""

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedbnn.base.checkpoints import Checkpoints
from fedbnn.base.files import read_json
from fedbnn.base.settings import parsed
from fedbnn.cli import privacy_tables
from fedbnn.data import federate, load_dataset
from fedbnn.data.csv_source import Table, load_csv
from fedbnn.data.npz_source import load_npz
from fedbnn.deployment.alignment import read_alignment
from fedbnn.deployment.node import Node, Request
from fedbnn.deployment.server_file import read_server
from fedbnn.deployment.site import load_site
from fedbnn.deployment.site_file import SiteSettings, read_site
from fedbnn.deployment.state import remembered_site
from fedbnn.deployment.statement import statement, write_statement
from fedbnn.deployment.terms import Terms
from fedbnn.federation.message import Message
from fedbnn.privacy.chain import Chain
from fedbnn.privacy.ledger import Budget, Cost, Ledger, Limit
from fedbnn.privacy.overview import overview
from fedbnn.runs.config import load_config, toml_value
from tests.deployment.deployment_sample import small_config, small_terms
from tests.fuzz import corpus
from tests.fuzz.memory import little_memory
from tests.fuzz.mutations import ODD
from tests.fuzz.targets.data import CSV, RECORDS, everything
from tests.fuzz.targets.kept import forge, records_of_client, site_of
from tests.fuzz.targets.target import outcome

TERMS = small_terms()


def refused(read: Callable[[], object]) -> None:
    assert outcome(read)


# Settings


@pytest.mark.parametrize("read", [read_site, read_server, load_config])
@pytest.mark.parametrize("name", corpus.TOML)
def test_settings(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(corpus.TOML[name], encoding="utf-8", newline="")
    refused(lambda: read(file))


@pytest.mark.parametrize("name", corpus.TOML)
def test_overrides(name: str) -> None:
    outcome(lambda: load_config(None, [corpus.TOML[name].split("\n")[0].replace(" = ", "=")]))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = list(value) if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    return [path, *(place for key in inner for place in places(value[key], (*path, key)))]


@pytest.mark.parametrize("name", corpus.VALUES)
def test_values_at_any_place_of_the_terms(name: str) -> None:
    for place in places(TERMS.to_dict()):
        raw: Any = {"terms": TERMS.to_dict()}
        target = raw
        *path, last = ("terms", *place)
        for key in path:
            target = target[key]
        target[last] = "HERE"
        text = json.dumps(raw["terms"]).replace('"HERE"', corpus.VALUES[name])
        outcome(lambda text=text: Terms.from_json(text))  # type: ignore[misc]


@given(st.text(max_size=50) | st.binary(max_size=50))
def test_any_text_as_settings(text: str | bytes) -> None:
    outcome(lambda: parsed(SiteSettings, text))


@pytest.mark.parametrize("text", [*corpus.VALUES.values(), *corpus.FACTS.values()])
def test_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    outcome(lambda: read_json(tmp_path / "file.json"))


@pytest.mark.parametrize("name", corpus.PATHS)
def test_paths(tmp_path: Path, name: str) -> None:
    for ending in ("", ".npz", ".csv"):
        path = corpus.PATHS[name] + ending
        refused(lambda path=path: load_npz(path))  # type: ignore[misc]
        refused(lambda path=path: load_csv(path, "sick", "", 0.5))  # type: ignore[misc]
        config = small_config("fedbnn", f"data.alignment_source={json.dumps(path or 'x')}")
        refused(lambda config=config: federate(load_dataset(config.data), config.data, config.partition, 0))  # type: ignore[misc]


@pytest.mark.parametrize("field", ["data.path", "terms", "alignment", "state", "signing_key"])
@pytest.mark.parametrize("name", ["no such user", "null byte"])  # others only fail where they are read
def test_paths_of_a_site(tmp_path: Path, name: str, field: str) -> None:
    file = tmp_path / "site.toml"
    table = {"data": {"path": "records.npz"}, "name": "a"}
    target = table["data"] if field == "data.path" else table
    target[field.removeprefix("data.")] = corpus.PATHS[name]  # type: ignore[index]
    file.write_text("\n".join(f"{key} = {toml_value(value)}" for key, value in table.items()))
    assert f"site.toml: {field} = " in outcome(lambda: read_site(file))


# Arrays


@pytest.mark.parametrize("name", corpus.ARCHIVES)
def test_archives(tmp_path: Path, name: str) -> None:
    path = tmp_path / "records.npz"
    path.write_bytes(corpus.ARCHIVES[name])
    with little_memory(2**29):
        refused(lambda: load_npz(str(path)))
        refused(lambda: read_alignment(path, TERMS))
        outcome(lambda: everything(path))


def test_odd_arrays_at_every_place(tmp_path: Path) -> None:
    path = tmp_path / "records.npz"
    terms, settings = site_of(tmp_path)
    for key in RECORDS:
        for odd in ODD:
            np.savez(path, **{**RECORDS, key: odd})
            outcome(lambda: load_npz(str(path)))
            outcome(lambda: load_npz(str(path), tests=1))
            outcome(lambda: load_site(settings, terms))


def test_an_archive_that_unfolds_is_refused_before_it_does(tmp_path: Path) -> None:
    """The header agrees with the archive, and both with nothing on disk."""
    path = tmp_path / "records.npz"
    claimed = corpus.archive({"x_train.npy": corpus.npy_header(corpus.described(shape=f"({2**40},)"))})
    at = claimed.index(b"PK\x01\x02") + 24
    size = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(claimed[:at] + size + claimed[at + 4 :])
    with little_memory(2**29):
        refused(lambda: everything(path))


# Tables

CELLS = [
    "9" * 5_000,
    "nan",
    "inf",
    "1e999",
    "\0",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "\x1b[2J",
]


@pytest.mark.parametrize("cell", [*CELLS, '"', "'", ",", '"a\nb"', "x" * 200_000, "1_0", "٣"])
def test_tables(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "records.csv"
    for place in ("age", "sick", "1", "yes"):
        path.write_text(CSV.replace(place, cell, 1), encoding="utf-8")
        outcome(lambda: load_csv(str(path), "sick", "", 0.5))
        outcome(lambda: Table.read(path, "x"))


# Messages on disk


@pytest.mark.parametrize(
    "shape",
    ["[0,4611686018427387904,4611686018427387904]", "[-1]", "[1.5]", f"[{corpus.MORE_DIGITS}]", corpus.nested(5_000)],
)
def test_messages_with_absurd_shapes(shape: str) -> None:
    header = f'{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}'.encode()
    refused(lambda: Message.from_bytes(len(header).to_bytes(8, "little") + header))


# What is kept: ledgers and checkpoints


def test_changed_ledgers(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, "f" * 64, "anna") as ledger:
        for number in range(3):
            ledger.release(f"r{number}", "inputs", Cost(0.1), [Limit(Budget(3.0, 1e-5))], lambda: b"bytes")
    for name in ("ledger.jsonl", "head.json"):
        file = tmp_path / name
        good = file.read_bytes()
        for data in corpus.flips(good, 150):
            file.write_bytes(data)
            refused_unless(data == good, lambda: Chain.load(tmp_path))
        for text in (*corpus.VALUES.values(), *corpus.FACTS.values()):
            file.write_text(text + "\n")
            refused(lambda: Chain.load(tmp_path))
        file.write_text(corpus.nested(100_000))
        refused(lambda: Ledger.read(tmp_path))
        file.write_bytes(good)
    assert len(Ledger.read(tmp_path).entries) == 3


@pytest.mark.parametrize("field", ["mu", "gap", "joined", "epsilon"])
def test_ledgers_with_numbers_at_the_end_of_what_a_double_holds(tmp_path: Path, field: str) -> None:
    """Their hashes are right, so they are believed; then they are told, whatever they say."""
    place = tmp_path / "ledgers" / "a"
    with Ledger.open(place, "f" * 64, "anna") as ledger:
        for number in range(3):
            ledger.release(f"r{number}", "inputs", Cost(0.1), [Limit(Budget(3.0, 1e-5))], lambda: b"bytes")
    for value in (1e308, 1.7e308, 1e16, 5e-324):
        rewrite(place, {field: value})
        for delta in (1e-5, 5e-324):
            found = overview(tmp_path, delta)
            assert not found.broken
            Console(file=io.StringIO()).print(privacy_tables.overview(found))
            write_statement(statement(tmp_path, delta), tmp_path / "out")


def rewrite(ledger: Path, changes: dict[str, float]) -> None:
    """Other numbers in every charge, in a chain that holds together."""
    rows = [json.loads(line) for line in (ledger / "ledger.jsonl").read_bytes().splitlines()]
    previous, data = "", b""
    for row in rows:
        line = json.dumps(row | {"previous": previous} | (changes if row["kind"] == "charge" else {})).encode() + b"\n"
        previous, data = hashlib.sha256(line).hexdigest(), data + line
    (ledger / "ledger.jsonl").write_bytes(data)
    (ledger / "head.json").write_text(json.dumps({"count": len(rows), "sha256": previous}) + "\n")


@pytest.mark.parametrize("text", [*corpus.VALUES.values(), *corpus.FACTS.values(), '{"privacy": {"ledgers": 1}}'])
def test_folders_without_ledgers(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    refused(lambda: overview(tmp_path, 1e-5))
    refused(lambda: statement(tmp_path, 1e-5))


OBJECTS = [*corpus.VALUES.values(), *corpus.FACTS.values()]


@pytest.mark.parametrize("text", [*OBJECTS, *(f'{{"site": {value}}}' for value in corpus.VALUES.values())])
def test_where_a_site_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "site.json").write_text(text)
    refused(lambda: read_site(remembered_site(tmp_path)))


def test_turns_that_somebody_wrote(tmp_path: Path) -> None:
    """With checksums that are right, so that they are read."""
    terms, settings = site_of(tmp_path)
    np.savez(tmp_path / "records.npz", **records_of_client(0))
    node = Node(terms, load_site(settings, terms), tmp_path / "state", share_metrics=False)
    node.answer(Request("update", 0, terms.digest))
    [place] = (node.state.path / "checkpoint").iterdir()
    x, expected = torch.zeros(1, 1, 8, 8), 0
    for name in ("turn.json", "client-0000.safetensors", "reply.safetensors", "message.safetensors"):
        good = (place / name).read_bytes()
        texts = [*OBJECTS, '{"request": 1, "info": {}}', '{"request": "a"}'] if name == "turn.json" else ["", "abc"]
        for text in texts:
            forge(place, name, text.encode())
            again = Node(terms, node.site, tmp_path / "state", share_metrics=False)
            expected += bool(outcome(lambda again=again: again.predict(x)))  # type: ignore[misc]
            outcome(lambda again=again: again.answer(Request("update", 0, terms.digest)))  # type: ignore[misc]
        forge(place, name, good)
    assert expected >= len(OBJECTS)
    assert len(Node(terms, node.site, tmp_path / "state", share_metrics=False).predict(x).probs) == 1


def refused_unless(fine: bool, read: Callable[[], object]) -> None:
    assert bool(outcome(read)) != fine


def test_changed_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "begin anew")
    checkpoints.save(0, 1.0, lambda folder: (folder / "state").write_bytes(b"state") and None)
    manifest = tmp_path / "round-00000" / "manifest.json"
    good = manifest.read_text()
    for data in corpus.flips(good.encode(), 200):
        manifest.write_bytes(data)
        outcome(checkpoints.latest)
    for value in corpus.VALUES.values():
        for field in ("round", "seconds", "sha256"):
            written = json.loads(good) | {field: "HERE"}
            manifest.write_text(json.dumps(written).replace('"HERE"', value))
            refused(checkpoints.latest)
        manifest.write_text(value)
        refused(checkpoints.latest)
    os.mkfifo(tmp_path / "pipe")
    for name in ("../pipe", "/dev/zero", "/dev/stdin", ".", "..", "", "a/b", "\0"):
        manifest.write_text(json.dumps({"round": 0, "seconds": 1.0, "sha256": {name: "0" * 64}}))
        refused(checkpoints.latest)
    manifest.write_text(good)
    assert checkpoints.latest() is not None
