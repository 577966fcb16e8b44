"""Ditto, the example of a method from outside: its algorithm, and every way to run it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ditto import Ditto, Personal
from safetensors.torch import load_file
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.cli.app import main
from fedbnn.federation.evaluation import headline
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client
from fedbnn.methods import FedAvg, Local
from tests.conftest import TINY
from tests.federation_sample import small_sites
from tests.plain_torch import PlainClient, copies, epoch_order, from_module, proximal, to_module, train

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RNG = Stream((0, "ditto"))
SAME, DIFFERENT = 1e-4, 2e-2  # of how far training moved
METHOD = Ditto(strength=2.0, learning_rate=3e-3)


def a_client(model: str) -> Client:
    """Twelve records in uneven minibatches, two passes."""
    client = small_sites(1, models=(model,), batch_size=5)[0].client
    return dataclasses.replace(client, training=dataclasses.replace(client.training, local_epochs=2))


def situation(client: Client) -> tuple[Tensor, Tensor]:
    """A personal and a shared model of the middle of a run."""
    normal = RNG.child("situation").torch()
    own = client.initial_weights()
    return own, own + 0.02 * torch.randn(own.shape, generator=normal)


def plainly(method: Ditto, client: Client, own: Tensor, shared: Tensor, round_number: int) -> tuple[Tensor, Tensor]:
    """v_i and w_i after a round, with an ordinary module, torch's Adam, and autograd for the penalty."""
    plain, passes = PlainClient.of(client), client.training.passes(round_number)
    centre = copies(to_module(shared, plain.module))
    trained = []
    for start, name, penalty in (
        (own if round_number else shared, "personal", proximal(method.strength, centre)),
        (shared, "shared", None),
    ):
        to_module(start, plain.module)
        order = epoch_order(len(plain.x), passes, plain.batch, RNG.child(name).torch())
        train(plain.module, plain.x, plain.y, order, method.learning_rate, penalty=penalty)
        trained.append(from_module(plain.module))
    return trained[0], trained[1]


def deviation(method: Ditto, client: Client, round_number: int) -> tuple[float, float]:
    """How far our v_i and w_i are from those of plain torch, as a share of how far training moved them."""
    own, shared = situation(client)
    update = METHOD.client_update(Personal(own), client, Message({"weights": shared}), round_number, RNG)
    v, w = plainly(method, client, own, shared, round_number)
    begun = own if round_number else shared
    personal, sent = update.state.weights, update.message.arrays["weights"]
    return float((personal - v).norm() / (v - begun).norm()), float((sent - w).norm() / (w - shared).norm())


@pytest.mark.parametrize("model", ["mlp", "cnn2"])
@pytest.mark.parametrize("round_number", [0, 2])
def test_a_turn_is_what_plain_torch_makes_of_it(model: str, round_number: int) -> None:
    assert max(deviation(METHOD, a_client(model), round_number)) < SAME


@pytest.mark.parametrize("wrong", [1.0, 4.0])
def test_another_strength_is_noticed_in_the_personal_model_alone(wrong: float) -> None:
    personal, sent = deviation(dataclasses.replace(METHOD, strength=wrong), a_client("mlp"), 2)
    assert personal > DIFFERENT
    assert sent < SAME


def test_the_shared_model_does_not_hang_on_the_pull() -> None:
    """Whatever lambda is, w is the same; the larger it is, the nearer personal models stay to w."""
    sites = small_sites(3, models=("mlp",))
    ends = {}
    for strength in (0.0, 1.0, 100.0):
        federation = Federation(Ditto(strength=strength, learning_rate=2e-3), sites)
        turns = federation.run(2)[-1].turns
        ends[strength] = federation.server.tensors()["weights"], sum(turn.info["apart"] for turn in turns.values())
    assert all(torch.equal(ends[0.0][0], weights) for weights, _ in ends.values())
    assert ends[0.0][1] > ends[1.0][1] > ends[100.0][1]


def test_both_models_are_scored_the_personal_one_first() -> None:
    [record] = Federation(Ditto(), small_sites(2, models=("mlp",))).run(0)
    assert [list(found) for found in record.scores.values()] == [["personal", "global", "global_own_prior"]] * 2
    shared = {found["global"].scores["all_class_nll"] for found in record.scores.values()}
    personal = {headline(found).scores["all_class_nll"] for found in record.scores.values()}
    assert len(shared) == 1
    assert len(personal) == 2


def test_personal_models_are_better_than_either_extreme_on_their_own_classes() -> None:
    """What the method is for: clients of few classes each. Better than one model for all and at least as good as
    training alone.
    """
    sites = small_sites(4, models=("mlp",))

    def own_nll(method: Any) -> float:
        last = Federation(method, sites).run(4)[-1]
        return sum(headline(found).scores["nll"] for found in last.scores.values())

    ditto = own_nll(Ditto(strength=0.1, learning_rate=2e-3))
    assert ditto < own_nll(FedAvg(learning_rate=2e-3))
    assert ditto < own_nll(Local(learning_rate=2e-3)) + 0.05


def result_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    return json.loads(printed.out)


CONFIG = """
method = "ditto:Ditto"
rounds = 2
models = [{ name = "mlp" }]
[partition]
clients = 3
[training]
warmup_epochs = 2
local_epochs = 1
[data]
alignment = 20
[methods.ditto]
strength = 0.5
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    (tmp_path / "ditto.toml").write_text(CONFIG)
    return tmp_path / "ditto.toml"


def test_it_runs_from_a_file_and_resumes(toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    result = result_of(capsys, "run", toml, "--set", "engine.workers=2", "--out", out, "--json")
    assert (result["method"], list(result["variants"])) == ("ditto", ["personal", "global", "global_own_prior"])
    stored = json.loads((out / "config.json").read_text())
    assert (stored["method"], stored["methods"]["ditto"]["strength"]) == ("ditto:Ditto", 0.5)
    assert "ditto" in (out / "report.html").read_text()
    # As if it had been stopped after round 1.
    (out / "result.json").unlink()
    states = load_file(out / "checkpoint" / "round-00002" / "server.safetensors")
    for file in (out / "checkpoint" / "round-00002").iterdir():
        file.unlink()
    (out / "checkpoint" / "round-00002").rmdir()
    again = result_of(capsys, "run", toml, "--set", "engine.debug=true", "--out", out, "--resume", "--json")
    assert again["per_client"]["nll"] == result["per_client"]["nll"]
    resumed = load_file(out / "checkpoint" / "round-00002" / "server.safetensors")
    assert torch.equal(resumed["weights"], states["weights"])


def test_it_is_compared_with_ours(toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its settings from the file, also where the file's method is another."""
    toml.write_text(CONFIG.replace('"ditto:Ditto"', '"fedavg"'))
    out = tmp_path / "compared"
    options = ("--methods", "ditto:Ditto,fedavg", "--set", "engine.debug=true", "--out", out, "--json")
    results = result_of(capsys, "compare", toml, *options)
    assert [one["method"] for one in results] == ["ditto", "fedavg"]
    assert sorted(folder.name for folder in out.iterdir() if folder.is_dir()) == ["ditto-seed0", "fedavg-seed0"]
    assert json.loads((out / "ditto-seed0" / "config.json").read_text())["methods"]["ditto"]["strength"] == 0.5
    assert "ditto" in (out / "report.html").read_text()


@pytest.mark.flower
def test_on_flowers_simulation_it_gives_the_same_bits(toml: Path, tmp_path: Path) -> None:
    """With the console script in the folder of the module, as a user would: Ray's processes find it there too."""
    script = tmp_path / "fedbnn"
    script.write_text("from fedbnn.cli.app import main\nmain()\n")
    for engine in ("local", "flower-sim"):
        changes = (*TINY, "method=ditto:Ditto", "engine.debug=false", "engine.workers=2", "rounds=1")
        options = [word for change in changes for word in ("--set", change)]
        start = [sys.executable, str(script), "run", str(toml), "--engine", engine, "--out", str(tmp_path / engine)]
        subprocess.run([*start, *options], check=True, timeout=400, cwd=EXAMPLES)
    local, simulated = (
        load_file(tmp_path / engine / "checkpoint" / "round-00001" / "server.safetensors")
        for engine in ("local", "flower-sim")
    )
    assert torch.equal(local["weights"], simulated["weights"])
    scores = [json.loads((tmp_path / engine / "result.json").read_text()) for engine in ("local", "flower-sim")]
    assert scores[0]["per_client"]["nll"] == scores[1]["per_client"]["nll"]
    assert scores[0]["variants"] == scores[1]["variants"]
