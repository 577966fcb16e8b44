"""Regression over Flower: every method that knows it equal to the local engine, and scores of its own task alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict

from fedbnn.deployment.flower import serve as serving
from fedbnn.deployment.flower import strategy
from fedbnn.deployment.flower.client_app import make_app
from fedbnn.deployment.flower.serve import serve
from fedbnn.deployment.flower.wire import packed, unpacked
from fedbnn.deployment.node import Node
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.loop import Federation
from fedbnn.federation.method import Method
from fedbnn.federation.regression_evaluation import REGRESSION_SCORES
from fedbnn.methods import METHODS as EVERY
from fedbnn.methods import FedBN
from fedbnn.runs.config import Config
from fedbnn.runs.experiment import run
from tests.conftest import TINY
from tests.deployment.deployment_sample import small_config
from tests.deployment.flower.direct_grid import DirectGrid
from tests.deployment.flower.test_strategy import World
from tests.deployment.regression_sites import DIABETES, diabetes
from tests.federation_sample import described
from tests.fuzz.targets.messages import measured, scored
from tests.regression_sample import METHODS

ROUNDS = 2
NORMALISED = 'models=[{name="tests.deployment.flower.test_regression_strategy:normalised"}]'


def normalised(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """With a layer that FedBN keeps at home."""
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, outputs))


def configured(method: Method[Any, Any]) -> Config:
    own = (NORMALISED,) if isinstance(method, FedBN) else ()
    config = diabetes(method.name, f"rounds={ROUNDS}", "data.alignment=250", "participation=0.6", *own)
    object.__setattr__(config, "methods", config.methods.model_copy(update={method.name: method}))
    return config


@pytest.mark.parametrize("method", [*METHODS, FedBN()], ids=described)
def test_every_method_is_equal_to_the_local_engine(method: Method[Any, Any], tmp_path: Path) -> None:
    config = configured(method)
    world = World(config, tmp_path)
    world.strategy.run_rounds(world.grid)
    local = Federation(method, world.sites, seed=config.seed, participation=0.6)
    expected = local.run(ROUNDS)
    ours, theirs = world.strategy.server.state.tensors(), local.server.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for mine, other in zip(world.rounds, expected, strict=True):
        assert mine.number == other.number
        assert {c: (t.bytes_up, t.rejected) for c, t in mine.turns.items()} == {
            c: (t.bytes_up, "") for c, t in other.turns.items()
        }
        assert mine.scores.keys() == other.scores.keys()
        for client, variants in other.scores.items():
            told = {variant: one.to_dict() for variant, one in variants.items()}
            assert {variant: one.to_dict() for variant, one in mine.scores[client].items()} == told


def test_all_methods_of_regression_are_tried() -> None:
    assert {method.name for method in (*METHODS, FedBN())} == {name for name, one in EVERY.items() if one.regression}


def telling(evaluation: dict[str, Any]) -> Any:
    """A node that replies with these scores instead of its own."""

    def spoil(reply: Message) -> Message:
        message, facts = unpacked(reply.content, 10**9)
        if "evaluation" not in facts:
            return reply
        content: RecordDict = packed(message, facts | {"evaluation": {"global": evaluation}})
        reply.content = content
        return reply

    return spoil


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_scores_of_the_other_task_are_dropped(task: str, tmp_path: Path) -> None:
    regression = task == "regression"
    config = diabetes("fedavg", "rounds=1") if regression else small_config("fedavg", "rounds=1")
    world = World(config, tmp_path, {0: telling(scored() if regression else measured())})
    world.strategy.run_rounds(world.grid)
    assert all(0 not in one.scores and {1, 2} <= one.scores.keys() for one in world.rounds)
    name = world.terms.sites[0]
    assert any(text.startswith(f"the scores of '{name}' are dropped: they cannot be read") for text in world.told)


def test_a_server_and_its_sites_from_their_folders_are_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (serving, strategy):
        monkeypatch.setattr(module, "ASK_AGAIN", 0.01)
    config = diabetes("fedavg")
    terms = write_federation(tmp_path / "parties", config, "trial")
    nodes = [Node.from_file(tmp_path / "parties" / "sites" / name / "site.toml") for name in terms.sites]
    apps = {1000 + client: make_app(lambda *_, node=node: node) for client, node in enumerate(nodes)}
    serve(DirectGrid(apps), tmp_path / "parties" / "server", lambda _: None)
    local = run(config, tmp_path / "local")
    folder = tmp_path / "parties" / "server" / "runs" / terms.key
    told = json.loads((folder / "result.json").read_text())
    assert told["terms"] == terms.to_dict()
    for client, name in enumerate(terms.sites):
        found = told["sites"][name]
        assert {score: found[score] for score in REGRESSION_SCORES} == {
            score: local["per_client"][score][client] for score in REGRESSION_SCORES
        }
        assert (found["turns"], found["dropped"]) == (config.rounds + 1, 0)
    assert _lines(folder) == _lines(tmp_path / "local")


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Metrics without what is measured by a clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: one for name, one in line.items() if name not in ("seconds", "elapsed")} for line in lines]


@pytest.mark.flower
def test_the_simulation_is_equal_bit_for_bit(tmp_path: Path) -> None:
    """As a user would: Ray leaves files open in the process that starts it."""
    config = diabetes("fedbnn")
    changes = [word for change in (*TINY, *DIABETES, "engine.workers=2") for word in ("--set", change)]
    command = [sys.executable, "-m", "fedbnn", "run", "--engine", "flower-sim", "--out", str(tmp_path / "flower")]
    subprocess.run([*command, *changes], check=True, timeout=400)
    local = run(config, tmp_path / "local")
    simulated = json.loads((tmp_path / "flower" / "result.json").read_text())
    told = json.loads(json.dumps(local))
    for result in (simulated, told):
        result.pop("seconds")
        result["per_client"].pop("seconds")
        result["curve"].pop("seconds")
    assert simulated == told
    assert _lines(tmp_path / "flower") == _lines(tmp_path / "local")
