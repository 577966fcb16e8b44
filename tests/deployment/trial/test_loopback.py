"""A trial on loopback with real Flower processes and an app that does nothing but answer.

All in one federation, because a process of Flower takes seconds to start.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedbnn.base.errors import UserError
from fedbnn.deployment.trial.loopback import Loopback, LoopbackFailure
from fedbnn.deployment.trial.processes import MARK
from tests.deployment.faulty_loopback import FaultyLoopback, ended

PYPROJECT = """\
[project]
name = "echo"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "tests"
fab-include = ["echo/*.py"]

[tool.flwr.app.components]
serverapp = "echo.apps:server"
clientapp = "echo.apps:client"

[tool.flwr.app.config]
fail = false
"""
APPS = """\
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.query()
def answer(message, context):
    return Message(content=RecordDict({"site": ConfigRecord({"site": context.node_config["site"]})}), reply_to=message)

@server.main()
def main(grid, context):
    if context.run_config["fail"]:
        raise RuntimeError("as wanted")
    deadline = time.monotonic() + 60
    while len(nodes := list(grid.get_node_ids())) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    asked = [Message(content=RecordDict(), message_type="query", dst_node_id=node) for node in nodes]
    for reply in grid.send_and_receive(asked, timeout=120):
        print("heard", reply.content["site"]["site"], flush=True)
"""


def write_app(folder: Path, *sites: str) -> None:
    (folder / "echo").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (folder / "echo" / "__init__.py").touch()
    (folder / "echo" / "apps.py").write_text(APPS, encoding="utf-8")
    for name in sites:
        (folder / "sites" / name).mkdir(parents=True)
        (folder / "sites" / name / "site.toml").touch()


def marked(folder: Path) -> list[str]:
    """The command lines of all processes that some trial in this folder has started and that still live."""
    mark = (folder / "loopback.lock").read_text(encoding="utf-8")
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                commands.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("a trial") / "app"  # a space in its path, as a user's may have
    write_app(place, "north", "south")
    return place


@pytest.fixture(scope="module")
def trial(folder: Path) -> Iterator[FaultyLoopback]:
    with FaultyLoopback(folder, ["north", "south"], {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}) as loopback:
        loopback.start_link()
        loopback.start_nodes()
        yield loopback
    assert marked(folder) == []
    loopback.close()  # harmless


@pytest.mark.flower
def test_every_site_answers_with_the_file_it_was_given(trial: FaultyLoopback, folder: Path) -> None:
    submission = trial.submit()
    assert ended(submission, 300) == "finished:completed", submission.output()
    for name in ("north", "south"):
        assert f"heard {folder / 'sites' / name / 'site.toml'}" in submission.output()


@pytest.mark.flower
def test_a_run_that_fails_is_told_from_one_that_does_not(trial: FaultyLoopback) -> None:
    submission = trial.submit("--run-config", "fail=true")
    assert ended(submission, 300) == "finished:failed"
    assert "as wanted" in submission.output()


@pytest.mark.flower
def test_a_node_with_a_key_that_nobody_registered_is_refused(trial: FaultyLoopback, folder: Path) -> None:
    (folder / "sites" / "stranger").mkdir()
    trial.start_stranger("stranger")
    deadline = time.monotonic() + 300
    while trial.node_alive("stranger"):
        assert time.monotonic() < deadline, trial.node_output("stranger")
        time.sleep(0.1)
    assert "Failed to activate SuperNode" in trial.node_output("stranger")
    assert "SuperNode ID" not in trial.node_output("stranger")


@pytest.mark.flower
def test_a_second_trial_in_the_same_folder_is_refused(trial: FaultyLoopback, folder: Path) -> None:
    with pytest.raises(UserError, match="is in use by another process"):
        Loopback(folder, ["north", "south"])
    assert trial.node_alive("north")


@pytest.mark.flower
def test_no_private_key_and_no_token_is_in_the_logs(trial: FaultyLoopback) -> None:
    keys = [trial.work / "server.key", trial.work / "ca.key", *(trial.work / "keys" / n for n in trial.nodes)]
    secrets = [line for key in keys for line in key.read_text().splitlines() if not line.startswith("-----")]
    logs = "".join(path.read_text(errors="replace") for path in trial.logs.iterdir())
    assert logs
    assert not [line for line in secrets if line in logs]
    assert "--token" not in logs


@pytest.mark.flower
def test_a_link_that_is_killed_leaves_nothing_and_comes_back(trial: FaultyLoopback, folder: Path) -> None:
    """The last test of this federation: the link's own children live in sessions of their own."""
    assert any("flower-superlink" in line for line in marked(folder))
    trial.kill_link()
    own = ("flower-superlink", f"--runtime-api-address {trial.address}")
    assert not [line for line in marked(folder) if any(word in line for word in own)]
    trial.start_link()
    assert trial.node_alive("north")


STOPPED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal, also where tests run in the background
from pathlib import Path
from fedbnn.deployment.trial.loopback import Loopback
with Loopback(Path(sys.argv[1]), []) as trial:
    trial.start_link()
    print("ready", flush=True)
    input()
"""


@pytest.mark.flower
def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, tmp_path / "app"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert marked(tmp_path / "app")
        os.kill(process.pid, signal.SIGINT)
        process.wait(60)
    assert marked(tmp_path / "app") == []


def test_a_folder_that_is_no_app_or_lacks_a_site_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no Flower app"):
        Loopback(tmp_path, [])
    write_app(tmp_path / "app", "north")
    with pytest.raises(UserError, match=r"sites/south/site\.toml"):
        Loopback(tmp_path / "app", ["north", "south"])
    Loopback(tmp_path / "app", ["north"]).close()


def test_a_site_keeps_its_key_over_trials_and_all_else_is_new(tmp_path: Path) -> None:
    write_app(tmp_path / "app", "north")
    made = []
    for _ in range(2):
        with Loopback(tmp_path / "app", ["north"]) as trial:
            assert list(trial.logs.iterdir()) == []
            (trial.logs / "old.log").touch()
            made.append([(trial.work / file).read_bytes() for file in ("keys/north", "keys/north.pub", "ca.pem")])
    assert made[0][:2] == made[1][:2]
    assert made[0][2] != made[1][2]


def test_a_link_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "flower-superlink").write_text("#!/bin/sh\necho broken\nexit 3\n", encoding="utf-8")
    (programs / "flower-superlink").chmod(0o755)
    with (
        Loopback(tmp_path / "app", [], {"PATH": f"{programs}:/bin:/usr/bin"}) as trial,
        pytest.raises(LoopbackFailure, match=r"link ended before it could answer; see .*link\.log"),
    ):
        trial.start_link()
    assert (trial.logs / "link.log").read_text() == "broken\n"
