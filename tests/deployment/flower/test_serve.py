"""The server from its folder on: a site that says it runs another architecture than all others ends no run for good."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp import ClientApp

from fedbnn.base.errors import UserError
from fedbnn.deployment.flower import serve as serving
from fedbnn.deployment.flower import strategy
from fedbnn.deployment.flower.client_app import make_app
from fedbnn.deployment.flower.serve import serve
from fedbnn.deployment.node import Node
from fedbnn.deployment.server_file import read_server
from fedbnn.deployment.terms import Terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.loop import roster_of
from fedbnn.federation.method import Method
from fedbnn.federation.server import Server
from fedbnn.models.architectures import ModelSettings
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import small_config
from tests.deployment.flower.direct_grid import DirectGrid
from tests.deployment.flower.test_strategy import stranger
from tests.federation_sample import SMALL_METHODS, described

OTHERS: dict[str, dict[str, Any]] = {
    "other options": {"name": "mlp", "options": {"hidden": [7]}},
    "another": {"name": "cnn2", "options": {}},
    "unknown": {"name": "os:system", "options": {}},
    "nonsense": {"name": "mlp\x1b[2J", "options": {}},
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (serving, strategy):
        monkeypatch.setattr(module, "ASK_AGAIN", 0.01)


def federation(folder: Path, method: str = "fedavg") -> tuple[Terms, dict[int, ClientApp]]:
    """A folder as `fedbnn flower init` writes it, and its sites."""
    terms = write_federation(folder, small_config(method, "rounds=1", 'models=[{name="mlp", options={hidden=[9]}}]'))
    nodes = [Node.from_file(folder / "sites" / name / "site.toml") for name in terms.sites]
    return terms, {1000 + client: make_app(lambda *_, node=node: node) for client, node in enumerate(nodes)}


def liar(terms: Terms, model: dict[str, Any]) -> ClientApp:
    return stranger(name=terms.sites[1], terms=terms.digest, model=model)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_site_with_another_model_is_refused_by_name_and_the_run_goes_on(tmp_path: Path, kind: str) -> None:
    terms, nodes = federation(tmp_path / "f")
    told: list[str] = []
    serve(DirectGrid({1: liar(terms, OTHERS[kind]), **nodes}), tmp_path / "f" / "server", told.append)
    refused = next(text for text in told if text.startswith("node 1 does not take part"))
    assert f"'{terms.sites[1]}' has the model {OTHERS[kind]['name'][:3]}" in refused
    assert 'server.toml asks for mlp {"hidden": [9]}' in refused
    assert refused.isprintable()
    run = tmp_path / "f" / "server" / "runs" / terms.key
    assert (run / "result.json").exists()
    known = json.loads((run / "sites.json").read_text())
    assert [one["model"]["options"] for one in known.values()] == [{"hidden": [9]}] * 3


@pytest.mark.parametrize(
    ("method", "kind", "words"),
    [("fedavg", "another", "they run 2"), ("fedavg", "unknown", "'client-1' came with"), ("feddf", "unknown", "came")],
)
def test_without_a_model_in_the_file_the_run_can_be_taken_up_again(
    tmp_path: Path, method: str, kind: str, words: str
) -> None:
    terms, nodes = federation(tmp_path / "f", method)
    server = tmp_path / "f" / "server"
    (server / "server.toml").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=rf"in server\.toml, \[model\] .*{words}.*") as error:
        serve(DirectGrid({1: liar(terms, OTHERS[kind]), **nodes}), server, lambda _: None)
    assert "client-1" in str(error.value)
    assert not (server / "runs" / terms.key / "sites.json").exists()
    serve(DirectGrid(nodes), server, lambda _: None)
    assert (server / "runs" / terms.key / "result.json").exists()


def test_a_model_that_nobody_can_build_is_told_before_anybody_is_waited_for(tmp_path: Path) -> None:
    federation(tmp_path / "f")
    server = tmp_path / "f" / "server"
    (server / "server.toml").write_text("[model]\nname = 'mlpp'\n", encoding="utf-8")
    with pytest.raises(UserError, match="unknown model 'mlpp'"):
        serve(DirectGrid({}), server, lambda _: None)


@pytest.mark.parametrize("method", ["fedavg", "fedbnn"])
def test_init_names_the_model_where_the_method_needs_one(tmp_path: Path, method: str) -> None:
    federation(tmp_path / "f", method)
    expected = ModelSettings("mlp", options={"hidden": [9]}) if method == "fedavg" else None
    assert read_server(tmp_path / "f" / "server" / "server.toml").model == expected


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_methods_say_whether_they_need_one_architecture(method: Method[Any, Any]) -> None:
    roster = roster_of(Prepared.of(small_config(), ["fedbnn"]).sites)
    mixed = replace(roster, models=(ModelSettings("mlp"), ModelSettings("cnn2"), ModelSettings("mlp")))
    if method.one_architecture:
        with pytest.raises(UserError, match="averages weights"):
            Server(method, mixed)
    else:
        Server(method, mixed)
