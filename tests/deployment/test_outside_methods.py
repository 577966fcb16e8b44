"""A method from outside in a deployment: the terms name it, every party allows it by name, or nothing is imported."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fedbabu import FedBABU

from fedbnn.base.errors import UserError
from fedbnn.deployment.agreement import Refused
from fedbnn.deployment.flower.serve import serve
from fedbnn.deployment.node import Node, Request
from fedbnn.deployment.predict import predict
from fedbnn.deployment.server_file import read_server
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.methods import registry
from fedbnn.runs.experiment import Prepared
from tests.deployment.deployment_sample import HandServer, site_nodes, small_config, write_sites

CONFIG = small_config("fedbabu:FedBABU", "methods.fedbabu.head_epochs=3")
TRAP = "tests.deployment.flower.trap"
ALLOWED = 'methods = ["fedbabu:FedBABU"]'


@pytest.fixture(autouse=True)
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process in which nobody has named FedBABU yet; and whatever happens, nobody imports the trap."""
    monkeypatch.setattr(registry, "_imported", {})
    yield
    assert TRAP not in sys.modules


def renamed(file: Path, method: str, **changes: Any) -> None:
    """Other terms at a site."""
    raw = json.loads((file.parent / "terms.json").read_text())
    (file.parent / "terms.json").write_text(json.dumps({**raw, "method": method, **changes}))


def test_sites_that_allow_it_give_the_same_bits_as_the_local_engine(tmp_path: Path) -> None:
    files = write_sites(tmp_path, CONFIG, head=ALLOWED)
    registry._imported.clear()
    nodes = site_nodes(files)
    assert nodes[0].terms.chosen() == FedBABU(head_epochs=3)
    sites = Prepared.of(CONFIG, [CONFIG.method]).sites
    federation = Federation(CONFIG.chosen(), sites, seed=CONFIG.seed)
    server = HandServer(nodes[0].terms, roster_of(sites))
    for _ in range(2):
        federation.step(evaluate=False)
        server.step(nodes)
    assert torch.equal(server.state.tensors()["weights"], federation.server.tensors()["weights"])
    x = sites[1].evaluation.x[:5]
    assert torch.equal(nodes[1].predict(x).probs, federation.predict(1, x).probs)
    assert nodes[0].answer(Request("hello", -1, nodes[0].terms.to_json())).facts["name"] == nodes[0].site.client.name

    # What a site has learned is asked for in another process, which must be allowed to import the method as well.
    registry._imported.clear()
    state = files[1].parent / "state"
    assert predict(state, files[1].parent / "alignment.npz").method == "fedbabu:FedBABU"
    registry._imported.clear()
    files[1].write_text(files[1].read_text().replace(ALLOWED, ""))
    with pytest.raises(
        UserError, match=r"method = 'fedbabu:FedBABU' is not one of ours, .* methods = \['fedbabu:FedBABU'\]"
    ):
        predict(state, files[1].parent / "alignment.npz")


@pytest.mark.parametrize("head", ["", 'methods = ["fedbabu:Other"]', 'methods = ["fedbabu"]'])
def test_a_site_that_does_not_allow_it_refuses_before_anything_is_imported(tmp_path: Path, head: str) -> None:
    file = write_sites(tmp_path, small_config("fedavg"), head=head)[0]
    renamed(file, f"{TRAP}:Method", settings={"anything": 1})
    (file.parent / "records.npz").unlink()
    with pytest.raises(Refused, match=rf"the terms ask for method = '{TRAP}:Method', which is not one of") as caught:
        Node.from_file(file)
    assert "\n" not in str(caught.value)
    assert not (file.parent / "state").exists()


def test_that_it_was_imported_for_something_else_is_no_permission(tmp_path: Path) -> None:
    registry.find_method("fedbabu:FedBABU")
    with pytest.raises(Refused, match="this site does not allow it"):
        Node.from_file(write_sites(tmp_path, CONFIG)[0])


def test_a_server_that_asks_for_another_method_is_told_so_and_nothing_is_imported(tmp_path: Path) -> None:
    node = Node.from_file(write_sites(tmp_path, small_config("fedavg"), head=f'methods = ["{TRAP}:Method"]')[0])
    asked = json.dumps({**json.loads(node.terms.to_json()), "method": f"{TRAP}:Method"})
    with pytest.raises(Refused, match=rf"the server asks for method = '{TRAP}:Method', agreed was 'fedavg'"):
        node.answer(Request("hello", -1, asked))


def test_terms_can_be_read_and_compared_without_their_method() -> None:
    """By whoever only wants to know what they say, a trial's command line for instance."""
    text = terms_text()
    terms = Terms.from_json(text)
    assert (terms.method, terms.settings) == ("fedbabu:FedBABU", {"head_epochs": 3})
    with pytest.raises(UserError, match=r"terms: method = 'fedbabu:FedBABU' is not one of ours") as caught:
        terms.chosen()
    assert "\n" not in str(caught.value)
    known = Terms.from_json(text, allowed=["fedbabu:FedBABU"])
    assert known.settings == {"learning_rate": 0.0005, "weight_decay": 0.0, "head_epochs": 3}
    with pytest.raises(UserError, match="unknown key 'head_epoch'; did you mean 'head_epochs'"):
        Terms.from_json(text.replace('"head_epochs"', '"head_epoch"'), allowed=["fedbabu:FedBABU"])
    with pytest.raises(UserError, match="method = 'fedbabo': unknown"):
        Terms.from_json(text.replace("fedbabu:FedBABU", "fedbabo"))


def terms_text() -> str:
    terms = Terms.of(CONFIG, Prepared.of(CONFIG, []).data, "trial")
    registry._imported.clear()
    return replace(terms, settings={"head_epochs": 3}).to_json()


def test_init_writes_the_permission_into_the_files_of_all_parties(tmp_path: Path) -> None:
    terms = write_federation(tmp_path / "deployed", CONFIG)
    registry._imported.clear()
    assert terms.run == "digits-fedbabu"
    assert read_server(tmp_path / "deployed" / "server" / "server.toml").methods == ("fedbabu:FedBABU",)
    for name in terms.sites:
        file = tmp_path / "deployed" / "sites" / name / "site.toml"
        assert read_site(file).methods == ("fedbabu:FedBABU",)
        assert Node.from_file(file).terms == terms
    ours = write_federation(tmp_path / "ours", small_config("fedavg"))
    assert read_server(tmp_path / "ours" / "server" / "server.toml").methods == ()
    assert read_site(tmp_path / "ours" / "sites" / ours.sites[0] / "site.toml").methods == ()


def test_a_server_that_does_not_allow_it_does_not_wait_for_anybody(tmp_path: Path) -> None:
    folder = tmp_path / "deployed" / "server"
    write_federation(tmp_path / "deployed", CONFIG)
    renamed(folder / "server.toml", f"{TRAP}:Method")
    grid: Any = None  # nobody is asked anything
    with pytest.raises(UserError, match=rf"method = '{TRAP}:Method' is not one of ours"):
        serve(grid, folder)
    assert not (folder / "runs").exists()
    assert read_terms(folder / "terms.json").method == f"{TRAP}:Method"
