"""Secure aggregation among four sites in real processes on 127.0.0.1, one of which dies in the middle of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedbnn.deployment.node import Node
from fedbnn.deployment.trial.init import write_federation
from tests.deployment.deployment_sample import small_config
from tests.deployment.faulty_loopback import FaultyLoopback, ended
from tests.deployment.test_secure_aggregation import SECURE, head_of

pytestmark = pytest.mark.flower

DYING = """
import os
from pathlib import Path
from fedbnn.deployment.flower.client_app import make_app
from fedbnn.deployment.node import Node
from fedbnn.privacy.secure.session import Phase

class DyingNode(Node):
    def answer(self, request):
        if request.kind == "update" and int(request.message.arrays.get("phase", 0)) >= Phase.MASKED:
            os._exit(1)
        return super().answer(request)

def node_of(context, question):
    place = Path(context.node_config["site"])
    return (DyingNode if place.parent.name == "client-3" else Node).from_file(place)

app = make_app(node_of)
"""


def test_the_server_has_the_exact_sum_of_the_sites_that_stayed(tmp_path: Path) -> None:
    """Client 3 gives its keys and shares, then dies: its masks are taken off, and its numbers are in no sum."""
    folder = tmp_path / "federation"
    terms = write_federation(folder, small_config("fedmd", "rounds=1", *SECURE), "secure")
    (folder / "federation" / "client_app.py").write_text(DYING, encoding="utf-8")
    (folder / "server" / "server.toml").write_text("round_timeout = 60.0\n", encoding="utf-8")
    with FaultyLoopback(folder, terms.sites, {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}) as trial:
        trial.start_link()
        trial.start_nodes()
        submission = trial.submit()
        assert ended(submission, 400.0) == "finished:completed", submission.output()
    assert "round 0: the reply of 'client-3' is dropped" in submission.output()
    sites = {name: Node.from_file(folder / "sites" / name / "site.toml").site for name in terms.sites}
    state = load_file(folder / "server" / "runs" / terms.key / "checkpoint" / "round-00001" / "server.safetensors")
    assert torch.equal(state["head"], head_of([sites[f"client-{number}"] for number in range(3)]))
    assert not list((folder / "sites" / "client-3" / "state").rglob("*.bin"))
