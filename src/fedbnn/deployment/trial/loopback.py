"""A whole deployment on this machine, for trying it out: one SuperLink and its SuperNodes on 127.0.0.1.

TLS and node authentication are on, as between real sites; certificates and keys are made on the spot and lie, with the
logs, in DIR/loopback. A site keeps its key over all trials in DIR: the server knows it by that.
"""

import http.client
import json
import re
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from fedbnn.base.errors import UserError
from fedbnn.base.files import locked
from fedbnn.deployment.trial.certificates import make_authority, make_node_key, make_server_certificate
from fedbnn.deployment.trial.processes import (
    POLL_SECONDS,
    STOP_SECONDS,
    Process,
    environment,
    ignoring_interrupts,
    kill_marked,
    start,
    wait_until,
)

HOST = "127.0.0.1"
CONNECTION = "loopback"
LOCK = "loopback.lock"  # also says which processes are of the trial that holds it
START_SECONDS = 180.0  # each process imports Flower first, on a busy machine among others
CONNECTED = "SuperNode ID:"
REFUSED = "[code: 2004]"
STARTED = re.compile(r"Successfully started run (\d+)")


class LoopbackFailure(RuntimeError):
    """A process of the trial did not do what it should; the text names its log."""


class Submission:
    """A run handed to the link: wait for it, read what it says."""

    def __init__(self, process: Process, ask: Callable[[str], str]) -> None:
        self._process = process
        self._ask = ask

    def output(self) -> str:
        return self._process.output()

    @property
    def alive(self) -> bool:
        """Whether the run is still being waited for."""
        return self._process.alive

    @property
    def run(self) -> str:
        """The number that Flower gave the run; empty until it has."""
        started = STARTED.search(self.output())
        return started[1] if started else ""

    def lines(self, timeout: float) -> Iterator[str]:
        """Each line as it is written, until the run ends."""
        given, deadline = 0, time.monotonic() + timeout
        while True:
            alive = self.alive
            text = self.output()
            end = len(text) if not alive else text.rfind("\n") + 1  # of the last line that is written to its end
            yield from text[given:end].splitlines()
            given = max(given, end)
            if not alive:
                return
            if time.monotonic() > deadline:
                raise LoopbackFailure(f"the run is not over after {timeout:.0f} s; see {self._process.log.parent}")
            time.sleep(POLL_SECONDS)

    def status(self) -> str:
        """Flower's word for how the run is or ended, e.g. finished:completed or finished:failed."""
        if not self.run:
            return f"never started: {self.output().strip()}"
        return self._ask(self.run)


class Loopback:
    """The processes of a trial in DIR, by name. Use it in a `with` block: leaving that ends every one of them.

    Args:
        folder: DIR, a Flower app as `fedbnn flower init` writes it.
        nodes: names of sites, each a folder DIR/sites/NAME with a site.toml.
        env: what to add to the environment of all processes.

    """

    def __init__(self, folder: Path, nodes: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.folder = folder.resolve()
        self.work = self.folder / "loopback"
        self.logs = self.work / "logs"
        self.nodes = tuple(nodes)
        self._mark = secrets.token_hex(16)
        self._env = environment(env or {})
        self._link: Process | None = None
        self._running: dict[str, Process] = {}
        self._runs: list[Process] = []
        with ExitStack() as held:
            self._hold(held)
            self._lay_out()
            self._held = held.pop_all()
        self.address = f"{HOST}:{_free_port()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers; the first time, tell it the public keys of all nodes.

        Started again it has the same port and the same database, so registrations survive and nodes find it again.
        """
        first = not (self.work / "link.db").exists()
        host, port = self.address.split(":")
        process = self._start(
            "link",
            [
                *("flower-superlink", "--host", host, "--port", port, "--database", str(self.work / "link.db")),
                *("--ssl-ca-certfile", str(self.work / "ca.pem"), "--ssl-certfile", str(self.work / "server.pem")),
                *("--ssl-keyfile", str(self.work / "server.key"), "--enable-supernode-auth"),
                "--disable-runtime-dependency-installation",
            ],
        )
        self._link = process
        self._wait_for(process, self._healthy, "answer")
        if first:
            for one in [self._register(name) for name in self.nodes]:
                if one.finish(START_SECONDS) != 0:
                    raise LoopbackFailure(f"{one.name}: the link did not take the key; see {one.log}")

    def start_nodes(self) -> None:
        """Start all SuperNodes at once and wait for each."""
        for name in self.nodes:
            self._start_node(name, self.work / "keys" / name)
        for name in self.nodes:
            self._wait_for_node(name)

    def submit(self, *arguments: str) -> Submission:
        """Hand the app in DIR to the link, as `flwr run DIR` with these further arguments would."""
        command = ["flwr", "run", str(self.folder), CONNECTION, "--stream", *arguments]
        process = self._start(f"run{len(self._runs) + 1}", command)
        self._runs.append(process)
        return Submission(process, self._status)

    def close(self) -> None:
        """End everything: nodes may say goodbye for a few seconds, then all that is left is killed."""
        processes = [*self._runs, *self._running.values(), *([self._link] if self._link else [])]
        with ignoring_interrupts():
            for process in processes:
                process.ask_to_stop()
            wait_until(lambda: not any(process.alive for process in processes), STOP_SECONDS)
            for process in processes:
                process.kill()
            wait_until(lambda: not kill_marked(self._mark), STOP_SECONDS)
        self._runs.clear()
        self._running.clear()
        self._link = None
        self._held.close()

    def _hold(self, held: ExitStack) -> None:
        """Hold DIR for this trial; what an earlier one left because it was killed itself is ended."""
        if not (self.folder / "pyproject.toml").is_file():
            raise UserError(f"{self.folder} holds no Flower app; `fedbnn flower init` writes one")
        held.enter_context(locked(self.folder, LOCK))
        lock = self.folder / LOCK
        earlier = lock.read_text(encoding="utf-8").strip()
        if re.fullmatch("[0-9a-f]{32}", earlier):
            wait_until(lambda: not kill_marked(earlier), STOP_SECONDS)
        lock.write_text(self._mark, encoding="utf-8")

    def _lay_out(self) -> None:
        """Everything anew but the keys of nodes, by which the server knows sites if a run goes on in another trial."""
        for name in self.nodes:
            if not (self.folder / "sites" / name / "site.toml").is_file():
                raise UserError(f"{self.folder}: no sites/{name}/site.toml; `fedbnn flower init` writes such a folder")
        keys = self.work / "keys"
        keys.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in self.work.iterdir():
            if old.is_dir() and old != keys:
                shutil.rmtree(old)
            elif old != keys:
                old.unlink()
        self.logs.mkdir()
        make_authority(self.work)
        make_server_certificate(self.work, [HOST, "localhost"])
        for name in self.nodes:
            if not (keys / f"{name}.pub").is_file():
                (keys / name).unlink(missing_ok=True)
                make_node_key(keys / name)

    def _start_node(self, name: str, key: Path) -> None:
        site = self.folder / "sites" / name / "site.toml"
        self._running[name] = self._start(
            name,
            [
                *("flower-supernode", "--superlink", self.address, "--root-certificates", str(self.work / "ca.pem")),
                *("--auth-supernode-private-key", str(key), "--host", HOST, "--port", str(_free_port())),
                *("--node-config", f"site={json.dumps(str(site))}"),
            ],
        )

    def _wait_for_node(self, name: str) -> None:
        """Until the link has taken the node in.

        A node that was killed counts as online until it has been silent for a minute, and until then the link refuses
        another with its key: so it is started again, as a service manager would.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            process = self._running[name]
            wait_until(partial(_settled, process), deadline - time.monotonic())
            if CONNECTED in process.output():
                return
            if process.alive or REFUSED not in process.output() or time.monotonic() > deadline:
                raise LoopbackFailure(f"node {name} was not taken in by the link; see {process.log}")
            process.kill()
            self._start_node(name, self.work / "keys" / name)

    def _register(self, name: str) -> Process:
        key = self.work / "keys" / f"{name}.pub"
        return self._start(f"register-{name}", ["flwr", "supernode", "register", str(key), CONNECTION, "--name", name])

    def _status(self, run: str) -> str:
        asked = self._start("list", ["flwr", "list", CONNECTION, "--run-id", run, "--format", "json"])
        asked.finish(START_SECONDS)
        try:
            return str(json.loads(asked.output())["runs"][0]["status"])
        except (ValueError, LookupError, TypeError):
            return f"unknown: {asked.output().strip()}"

    def _start(self, name: str, command: list[str]) -> Process:
        home = self.work / "flwr" / name  # one each, as on hosts of their own
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
            f"address = {json.dumps(self.address)}\nroot-certificates = {json.dumps(str(self.work / 'ca.pem'))}\n",
            encoding="utf-8",
        )
        return start(name, command, home, self.logs / f"{name}.log", self._mark, self._env)

    def _healthy(self) -> bool:
        host, port = self.address.split(":")
        context = ssl.create_default_context(cafile=self.work / "ca.pem")
        connection = http.client.HTTPSConnection(host, int(port), timeout=2, context=context)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _wait_for(self, process: Process, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or not process.alive, START_SECONDS)
        if not condition():
            words = "ended before it could" if not process.alive else f"did not within {START_SECONDS:.0f} s"
            raise LoopbackFailure(f"{process.name} {words} {what}; see {process.log}")


def _settled(node: Process) -> bool:
    return CONNECTED in node.output() or not node.alive


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
