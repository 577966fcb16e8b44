"""A federation of three sites in real processes on 127.0.0.1, with TLS and node authentication.

All tests share one link and three nodes, because a process of Flower takes seconds to start; each has its own run.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedbnn.deployment.alignment import write_alignment
from fedbnn.deployment.node import Node
from fedbnn.deployment.terms import Terms, alignment_hash, alignment_of, read_terms
from fedbnn.deployment.trial.init import write_federation
from fedbnn.deployment.trial.loopback import Submission
from fedbnn.federation.loop import Federation
from fedbnn.federation.sites import place_of
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.account import ledgers_in
from fedbnn.privacy.ledger import Ledger
from fedbnn.runs.config import Config
from fedbnn.runs.experiment import Prepared, run
from tests.conftest import TINY
from tests.deployment.deployment_sample import small_config
from tests.deployment.faulty_loopback import FaultyLoopback, ended

pytestmark = pytest.mark.flower
CHANGES = ('models=[{name="mlp"}, {name="cnn2"}, {name="cnn3"}]', "evaluation.every=100")
LONG = 400.0  # seconds; a bound for busy machines


@pytest.fixture(scope="module")
def config() -> Config:
    return small_config("fedbnn", *CHANGES)


@pytest.fixture(scope="module")
def folder(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("deployed") / "federation"
    write_federation(place, config, "equal")
    return place


@pytest.fixture(scope="module")
def loopback(folder: Path) -> Iterator[FaultyLoopback]:
    names = read_terms(folder / "server" / "terms.json").sites
    with FaultyLoopback(folder, names, {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}) as trial:
        trial.start_link()
        trial.start_nodes()
        yield trial


def agree(folder: Path, **changes: object) -> Terms:
    """Other terms for all parties."""
    terms = replace(read_terms(folder / "server" / "terms.json"), **changes)
    for party in (folder / "server", *(folder / "sites").iterdir()):
        (party / "terms.json").write_text(terms.to_json(), encoding="utf-8")
    return terms


def said(submission: Submission, words: str) -> str:
    """Wait until the server has said so; what it has said up to then."""
    end = time.monotonic() + LONG
    while words not in submission.output():
        assert time.monotonic() < end, submission.output()
        time.sleep(0.05)
    return submission.output()


def simulate(out: Path) -> None:
    """As a user would: Ray leaves files open in the process that starts it."""
    changes = [word for change in (*TINY, *CHANGES, "engine.workers=2") for word in ("--set", change)]
    command = [sys.executable, "-m", "fedbnn", "run", "--engine", "flower-sim", "--out", str(out), *changes]
    subprocess.run(command, check=True, timeout=LONG)


def equal(one: Path, other: Path) -> bool:
    mine, theirs = load_file(one), load_file(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_local_engine_simulation_and_deployment_are_equal_bit_for_bit(
    loopback: FaultyLoopback, folder: Path, config: Config, tmp_path: Path
) -> None:
    submission = loopback.submit()
    simulate(tmp_path / "simulated")
    run(config, tmp_path / "local")
    assert ended(submission, LONG) == "finished:completed", submission.output()

    last = f"round-{config.rounds:05d}"
    deployed = folder / "server" / "runs" / read_terms(folder / "server" / "terms.json").key
    server = tmp_path / "local" / "checkpoint" / last / "server.safetensors"
    assert equal(server, tmp_path / "simulated" / "checkpoint" / last / "server.safetensors")
    assert equal(server, deployed / "checkpoint" / last / "server.safetensors")

    prepared = Prepared.of(config, [config.method])
    federation = Federation(config.chosen(), prepared.sites, seed=config.seed)
    federation.run(config.rounds)
    terms = Terms.of(config, prepared.data, "simulation")
    x = prepared.sites[0].evaluation.x
    for client, site in enumerate(prepared.sites):
        name = site.client.name
        expected = federation.predict(client, x)
        nodes = {
            "deployment": Node.from_file(folder / "sites" / name / "site.toml"),
            "simulation": Node(terms, site, place_of(name, tmp_path / "simulated" / "sites"), share_metrics=True),
        }
        for engine, node in nodes.items():
            found = node.predict(x)
            for part in ("probs", "logits", "aleatoric"):
                assert torch.equal(getattr(found, part), getattr(expected, part)), (engine, name, part)
    scores = json.loads((deployed / "result.json").read_text())["sites"]
    local = json.loads((tmp_path / "local" / "result.json").read_text())["per_client"]
    assert [one["nll"] for one in scores.values()] == local["nll"]


def test_a_server_that_asks_for_more_than_agreed_is_refused(
    loopback: FaultyLoopback, folder: Path, tmp_path: Path
) -> None:
    greedy = tmp_path / "server"
    shutil.copytree(folder / "server", greedy, ignore=shutil.ignore_patterns("runs"))
    terms = read_terms(greedy / "terms.json")
    more = alignment_of(Prepared.of(small_config("fedbnn", *CHANGES, "data.alignment=40"), ["fedbnn"]).data)
    asked = replace(
        terms,
        alignment=replace(terms.alignment, points=len(more), sha256=alignment_hash(more)),
        privacy=replace(terms.privacy, epsilon=50.0),
    )
    (greedy / "terms.json").write_text(asked.to_json(), encoding="utf-8")
    write_alignment(greedy / "alignment.npz", more)
    # The run ends when this is over; until then three nodes must have started and answered, on a busy machine too.
    (greedy / "server.toml").write_text("wait = 120.0\n", encoding="utf-8")
    submission = loopback.submit("--run-config", f'server="{greedy}"')
    assert ended(submission, LONG) == "finished:failed", submission.output()
    assert submission.output().count("alignment.points = 40, agreed was 20") >= 3
    assert "privacy.epsilon = 50.0, agreed was 3.0" in submission.output()
    assert "these sites have not come: client-0, client-1, client-2" in submission.output()
    for site in (folder / "sites").iterdir():
        assert {place.name for place in (site / "state" / "runs").glob("*")} <= {terms.key}  # of the test before


MISBEHAVING = """
from dataclasses import replace
from pathlib import Path
import torch
from fedbnn.deployment.node import Node
from fedbnn.deployment.flower.client_app import make_app
from fedbnn.federation.message import Message

BAD = {
    0: lambda phi: phi.fill_(float("nan")),
    1: lambda phi: phi.T.contiguous(),
    2: lambda phi: phi.repeat(100, 1),
}

class BadNode(Node):
    def answer(self, request):
        answer = super().answer(request)
        if request.kind != "update":
            return answer
        return replace(answer, message=Message({"phi": BAD[request.round](answer.message.arrays["phi"].clone())}))

def node_of(context, question):
    place = Path(context.node_config["site"])
    return (BadNode if place.parent.name == "client-1" else Node).from_file(place)

app = make_app(node_of)
"""


def test_a_node_that_sends_nonsense_is_dropped_and_named(loopback: FaultyLoopback, folder: Path) -> None:
    """Client 1 sends NaN, then a wrong shape, then a hundred times as much; the others go on."""
    genuine = (folder / "federation" / "client_app.py").read_text()
    terms = agree(folder, run="nonsense", rounds=2)
    (folder / "federation" / "client_app.py").write_text(MISBEHAVING, encoding="utf-8")
    try:
        submission = loopback.submit()
        assert ended(submission, LONG) == "finished:completed", submission.output()
    finally:
        (folder / "federation" / "client_app.py").write_text(genuine, encoding="utf-8")
    told = submission.output()
    assert "round 0: the reply of 'client-1' is dropped: 'phi' holds values that are not finite" in told
    assert "round 1: the reply of 'client-1' is dropped: 'phi' has shape (10, 20), agreed was (20, 10)" in told
    assert (
        "round 2: the reply of 'client-1' is dropped: it holds 80128 bytes of arrays, agreed were at most 800" in told
    )
    sites = json.loads((folder / "server" / "runs" / terms.key / "result.json").read_text())["sites"]
    assert [(one["turns"], one["dropped"]) for one in sites.values()] == [(3, 0), (0, 3), (3, 0)]
    state = load_file(folder / "server" / "runs" / terms.key / "checkpoint" / "round-00002" / "server.safetensors")
    assert state["received"].tolist() == [True, False, True]
    assert bool(torch.isfinite(state["phi_bar"]).all())


def charges(folder: Path, name: str) -> list[str]:
    [ledger] = ledgers_in(folder / "sites" / name / "state" / "ledgers")
    return list(Ledger.read(ledger).charges)


def test_killed_nodes_and_a_killed_link_go_on_where_they_stopped(loopback: FaultyLoopback, folder: Path) -> None:
    """A node dies in round 2, then the whole link; both come back in round 3. What was spent is spent once."""
    terms = agree(folder, run="killed", rounds=4, privacy=PrivacySettings(mechanism="dp_teacher"))
    (folder / "server" / "server.toml").write_text("round_timeout = 60.0\nquorum = 2\n", encoding="utf-8")
    submission = loopback.submit()
    said(submission, "round 1 of 4: 3 of 3 sites")
    loopback.kill_node("client-2")
    place = folder / "sites" / "client-2" / "state" / "runs" / terms.key
    warm_up = (place / "metrics.jsonl").read_text().splitlines()[0]
    released = charges(folder, "client-2")
    assert len(released) == 1
    said(submission, "round 2 of 4: 2 of 3 sites")
    assert "round 2: the reply of 'client-2' is dropped" in submission.output()

    loopback.kill_link()
    loopback.start_link()
    loopback.start_node("client-2")
    again = loopback.submit()
    assert ended(again, LONG) == "finished:completed", again.output()
    told = again.output()
    assert "going on after round" in told
    assert "round 0 of 4" not in told
    assert "round 1 of 4" not in told
    assert "round 4 of 4: 3 of 3 sites" in told
    assert (place / "metrics.jsonl").read_text().splitlines()[0] == warm_up
    assert charges(folder, "client-2") == released
    assert {name: len(charges(folder, name)) for name in terms.sites} == dict.fromkeys(terms.sites, 1)
    for name in terms.sites:
        node = Node.from_file(folder / "sites" / name / "site.toml")
        turn = node.state.turn()
        assert turn is not None
        assert turn.round_number == 4
        assert turn.problems == ()
        assert not node.share_metrics
    lines = (folder / "server" / "runs" / terms.key / "metrics.jsonl").read_text()
    assert "own_class_accuracy" not in lines
