"""Processes of a trial that are all found again, and ended, whatever happens.

Each carries a mark in its environment, and so does whatever it starts: Flower starts some processes in sessions of
their own, which the end of a process group would not reach.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedbnn.base.errors import UserError

MARK = "FEDBNN_LOOPBACK"
STOP_SECONDS = 5.0
POLL_SECONDS = 0.05
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(eq=False)
class Process:
    """One process of the trial, with all that it starts: those that carry its mark."""

    name: str
    log: Path
    mark: str
    popen: subprocess.Popen[bytes]
    log_start: int  # bytes that the log held before

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        """What it has written since it was started."""
        with self.log.open("rb") as file:
            file.seek(self.log_start)
            return COLOUR.sub("", file.read().decode("utf-8", "replace"))

    def finish(self, seconds: float) -> int | None:
        """Its exit code, or None if it had to be killed because it took longer than this."""
        with suppress(subprocess.TimeoutExpired):
            return self.popen.wait(seconds)
        self.kill()
        return None

    def ask_to_stop(self) -> None:
        if self.alive:
            self.popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all it has started at once, as a power cut would."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        wait_until(lambda: not kill_marked(self.mark), STOP_SECONDS)


def start(name: str, command: list[str], home: Path, log: Path, mark: str, env: Mapping[str, str]) -> Process:
    """Start a program that writes to `log` and keeps Flower's files in `home`; its mark begins with `mark`."""
    program = shutil.which(command[0], path=env["PATH"])
    if program is None:
        raise UserError(f"{command[0]} is not here; `fedbnn flower` needs pip install 'fedbnn[flower]'")
    own = f"{mark}-{secrets.token_hex(4)}"
    with log.open("ab") as file:
        popen = subprocess.Popen(  # noqa: S603 - the command is ours
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=home,
            env={**env, "FLWR_HOME": str(home), MARK: own},
            start_new_session=True,
        )
        return Process(name, log, own, popen, file.tell())


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the programs of this Python first: Flower starts others of its programs by name."""
    programs = str(Path(sys.executable).parent)
    return {**os.environ, **QUIET, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}", **more}


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """A second Ctrl-C shall not leave half of the processes running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def kill_marked(mark: str, program: str = "") -> list[int]:
    """Kill every process that carries this mark, or those of them that run this program; their ids.

    Where there is no /proc, Flower's own watch ends them: each looks every 0.2 s whether the one that started it lives.
    """
    wanted = f"{MARK}={mark}".encode()
    killed = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = any(entry.startswith(wanted) for entry in (process / "environ").read_bytes().split(b"\0"))
            if marked and program.encode() in (process / "cmdline").read_bytes():
                killed.append(int(process.name))
                os.kill(int(process.name), signal.SIGKILL)
    return killed
