"""FedBABU, the example of a method from outside: its algorithm, and every way to run it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fedbabu import FedBABU
from safetensors.torch import load_file
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.cli.app import main
from fedbnn.federation.evaluation import headline
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Client
from fedbnn.methods import FedAvg
from fedbnn.methods.fedrep import body_and_head
from fedbnn.models.architectures import ModelSettings
from tests.conftest import TINY
from tests.federation_sample import small_sites, with_client
from tests.plain_torch import PlainClient, cross_entropy, epoch_order, from_module, to_module

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RNG = Stream((0, "fedbabu"))
SAME, DIFFERENT = 1e-4, 2e-2  # of how far training moved
METHOD = FedBABU(learning_rate=3e-3, weight_decay=0.1, head_epochs=3)


def a_client(model: str) -> Client:
    """Twelve records in uneven minibatches, two passes."""
    client = small_sites(1, models=(model,), batch_size=5)[0].client
    return dataclasses.replace(client, training=dataclasses.replace(client.training, local_epochs=2))


def shared_by(client: Client) -> Tensor:
    """The server's weights in the middle of a run."""
    own = client.initial_weights()
    return own + 0.02 * torch.randn(own.shape, generator=RNG.child("situation").torch())


def plainly(method: FedBABU, client: Client, start: Tensor, part: str, passes: int, rng: Stream) -> Tensor:
    """`start` after epochs of the body or of the head alone, with an ordinary module and torch's Adam."""
    plain = PlainClient.of(client)
    module = to_module(start, plain.module)
    head = list([one for one in module.modules() if list(one.parameters(recurse=False))][-1].parameters())
    body = [p for p in module.parameters() if not any(p is h for h in head)]
    moved = head if part == "head" else body
    adam = torch.optim.Adam(moved, lr=method.learning_rate, weight_decay=method.weight_decay)
    for index in epoch_order(len(plain.x), passes, plain.batch, rng.child("order").torch()):
        adam.zero_grad()
        cross_entropy(module(plain.x[index]), plain.y[index]).backward()
        adam.step()
    return from_module(module)


def deviation(method: FedBABU, model: str) -> tuple[float, float]:
    """How far our trained body and fitted head are from plain torch's, as a share of how far training moved them."""
    client = a_client(model)
    body, head = body_and_head(client.network, model, "fedbabu")
    shared = shared_by(client)
    message = Message({"weights": shared})
    update = METHOD.client_update(METHOD.client_init(client), client, message, 2, RNG)
    fitted = METHOD.scored(update.state, client, message, RNG)["personal"].weights
    assert torch.equal(update.state.weights[head], shared[head])
    assert torch.equal(update.message.arrays["weights"], update.state.weights[body])
    assert torch.equal(fitted[body], shared[body])
    trained = plainly(method, client, shared, "body", 2, RNG)
    own = plainly(method, client, shared, "head", method.head_epochs, RNG.child("head"))
    return (
        float((update.state.weights - trained).norm() / (trained - shared).norm()),
        float((fitted - own).norm() / (own - shared).norm()),
    )


@pytest.mark.parametrize("model", ["mlp", "cnn2"])
def test_a_turn_and_a_score_are_what_plain_torch_makes_of_them(model: str) -> None:
    assert max(deviation(METHOD, model)) < SAME


def test_a_wrong_factor_is_noticed_where_it_belongs() -> None:
    trained, fitted = deviation(dataclasses.replace(METHOD, head_epochs=4), "mlp")
    assert trained < SAME
    assert fitted > DIFFERENT
    assert min(deviation(dataclasses.replace(METHOD, learning_rate=2e-3), "mlp")) > DIFFERENT


def test_the_head_of_the_server_never_moves_and_its_body_does() -> None:
    sites = small_sites(3, models=("cnn2",))
    federation = Federation(FedBABU(learning_rate=3e-3), sites)
    first = federation.server.tensors()["weights"]
    federation.run(2)
    last = federation.server.tensors()["weights"]
    body, head = body_and_head(sites[0].client.network, "cnn2", "fedbabu")
    assert torch.equal(first[head], last[head])
    assert (first[body] - last[body]).abs().max() > 1e-3


def test_without_epochs_the_personal_model_is_the_global_one() -> None:
    [record] = Federation(FedBABU(head_epochs=0), small_sites(2, models=("mlp",))).run(0)
    for found in record.scores.values():
        assert list(found) == ["personal", "global", "global_own_prior"]
        assert headline(found).scores["all_class_nll"] == found["global"].scores["all_class_nll"]


def test_a_model_of_one_layer_is_refused() -> None:
    model = ModelSettings("mlp", options={"hidden": []})
    roster = roster_of([with_client(site, model=model) for site in small_sites(2, models=("mlp",))])
    with pytest.raises(UserError, match="'fedbabu' shares all trainable layers but the last, and model 'mlp' has only"):
        FedBABU().server_init(roster)


def test_heads_of_their_own_make_clients_better_on_their_classes() -> None:
    """What the method is for: clients of few classes each, against one model for all."""
    sites = small_sites(4, models=("mlp",))

    def own_nll(method: Any) -> float:
        last = Federation(method, sites).run(4)[-1]
        return sum(headline(found).scores["nll"] for found in last.scores.values())

    assert own_nll(FedBABU(learning_rate=2e-3, head_epochs=20)) < own_nll(FedAvg(learning_rate=2e-3))


def result_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    return json.loads(printed.out)


CONFIG = """
method = "fedbabu:FedBABU"
rounds = 2
models = [{ name = "mlp" }]
[partition]
clients = 3
[training]
warmup_epochs = 2
local_epochs = 1
[data]
alignment = 20
[methods.fedbabu]
head_epochs = 3
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    (tmp_path / "fedbabu.toml").write_text(CONFIG)
    return tmp_path / "fedbabu.toml"


def test_it_runs_from_a_file_and_resumes(toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    result = result_of(capsys, "run", toml, "--set", "engine.workers=2", "--out", out, "--json")
    assert (result["method"], list(result["variants"])) == ("fedbabu", ["personal", "global", "global_own_prior"])
    stored = json.loads((out / "config.json").read_text())
    assert (stored["method"], stored["methods"]["fedbabu"]["head_epochs"]) == ("fedbabu:FedBABU", 3)
    assert "fedbabu" in (out / "report.html").read_text()
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
    toml.write_text(CONFIG.replace('"fedbabu:FedBABU"', '"fedavg"'))
    out = tmp_path / "compared"
    options = ("--methods", "fedbabu:FedBABU,fedavg", "--set", "engine.debug=true", "--out", out, "--json")
    results = result_of(capsys, "compare", toml, *options)
    assert [one["method"] for one in results] == ["fedbabu", "fedavg"]
    assert sorted(folder.name for folder in out.iterdir() if folder.is_dir()) == ["fedavg-seed0", "fedbabu-seed0"]
    assert json.loads((out / "fedbabu-seed0" / "config.json").read_text())["methods"]["fedbabu"]["head_epochs"] == 3
    assert "fedbabu" in (out / "report.html").read_text()


@pytest.mark.flower
def test_on_flowers_simulation_it_gives_the_same_bits(toml: Path, tmp_path: Path) -> None:
    """With the console script in the folder of the module, as a user would: Ray's processes find it there too."""
    script = tmp_path / "fedbnn"
    script.write_text("from fedbnn.cli.app import main\nmain()\n")
    for engine in ("local", "flower-sim"):
        changes = (*TINY, "method=fedbabu:FedBABU", "engine.debug=false", "engine.workers=2", "rounds=1")
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
