"""Run folders and labelled records from anybody: they are read, or refused in one line; no code of theirs is run."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedbnn
from fedbnn import load_config
from fedbnn.data.tables.layout import Layout
from fedbnn.deployment.labelled import read_labelled
from tests.fuzz import corpus
from tests.fuzz.targets.target import outcome
from tests.fuzz.test_files import places, refused

STORED = load_config(None, ["method=fedavg", "data.alignment=20"]).to_json()


def written(folder: Path, text: str) -> Path:
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", corpus.VALUES)
def test_values_at_any_place_of_a_configuration(tmp_path: Path, name: str) -> None:
    for place in places(STORED):
        raw: Any = {"config": json.loads(json.dumps(STORED))}
        inner = raw
        for key in ("config", *place)[:-1]:
            inner = inner[key]
        inner[("config", *place)[-1]] = "HERE"
        text = json.dumps(raw["config"]).replace('"HERE"', corpus.VALUES[name])
        outcome(lambda text=text: fedbnn.load(written(tmp_path, text)))


@pytest.mark.parametrize("where", ["method", "model", "features"])
def test_names_of_code_are_refused_wherever_they_stand(tmp_path: Path, where: str) -> None:
    raw = json.loads(json.dumps(STORED))
    name = "antigravity:geohash"
    if where == "method":
        raw["method"] = name
    elif where == "model":
        raw["models"][0]["name"] = name
    else:
        raw["privacy"]["features"] = name
    refused(lambda: fedbnn.load(written(tmp_path, json.dumps(raw))))


@pytest.mark.parametrize("text", ["[]", "null", "1", "", corpus.nested(100_000), '{"method": 3}', "{}"])
def test_partitions_that_are_none(tmp_path: Path, text: str) -> None:
    written(tmp_path, json.dumps(STORED))
    (tmp_path / "partition.json").write_text(text)
    run = fedbnn.load(tmp_path)
    refused(lambda: run.clients)


@pytest.mark.parametrize("name", corpus.ARCHIVES)
def test_labelled_records(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known.npz"
    file.write_bytes(corpus.ARCHIVES[name])
    refused(lambda: read_labelled(file, ("a", "b"), "", (), (3,), Layout()))
