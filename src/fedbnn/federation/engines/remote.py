"""A worker as the pool sees it: a process that does one request after the other, and another one when it dies.

What is random in a turn has its own seed, and states outlive their worker (`lasting`): the process that takes over does
the rest of the request, and nobody can tell but by the clock. A worker that dies again and again at the same client is
told as that client's failure.
"""

import fcntl
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, cast

from fedbnn.base.errors import UserError
from fedbnn.federation.engines import frames
from fedbnn.federation.engines.engine import ClientFailure

MOST_DEATHS = 3  # in one request, at one client
_COMMAND = [sys.executable, "-m", "fedbnn.federation.engines.worker"]
# Fresh pages for every large activation cost up to a tenth of a training step; let glibc keep them instead.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
}
_ROOM = 1 << 20  # bytes, the most that Linux gives to anybody
_LAST = ("done", "user_error", "failure")  # frames after which a worker waits for its next request

log = logging.getLogger(__name__)


class _Gone(Exception):
    """The process has ended."""


class RemoteWorker:
    """Attributes:

    process: the one that works now.
    names: of the clients, to tell of one that fails.
    busy: whether it has not finished what it was given.

    """

    def __init__(self) -> None:
        self.process = _new_process()
        self.names: Mapping[int, str] = {}
        self.busy = False
        self._start = frames.Frame({})  # how its clients were given to it
        self._request = frames.Frame({})
        self._number = 0  # of the request
        self._answered: set[int] = set()  # clients whose part of the request is done
        self._deaths: Counter[int | None] = Counter()

    @property
    def output(self) -> IO[bytes]:
        """What tells that there is something to take; another one after a death."""
        return cast(IO[bytes], self.process.stdout)

    def give(self, request: frames.Frame) -> None:
        """The next request: the one before is done with."""
        self._request, self._number, self.busy = request, self._number + 1, True
        self._answered.clear()
        self._deaths.clear()
        if request.header["request"] == "start":
            self._start = request
        try:
            self._write(request.header, request.payload)
        except _Gone:
            self._replace()

    def take(self) -> frames.Frame | None:
        """The next frame; None: the process has died, and another one goes on in its place."""
        try:
            frame = self._read()
        except _Gone:
            self._replace()
            return None
        if "client" in frame.header:
            self._answered.add(frame.header["client"])
        return frame

    def now_has(self, share: Sequence[int]) -> None:
        """These are its clients from now on: whoever takes over begins with them."""
        self._start = self._start._replace(header={**self._start.header, "share": list(share)})

    def finish(self) -> None:
        """Read on to the end of what it is doing."""
        while self.busy:
            with suppress(UserError, ClientFailure):
                self.take()

    def close(self) -> None:
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            cast(IO[bytes], stream).close()

    def _write(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        try:
            frames.write(cast(IO[bytes], self.process.stdin), {**header, "number": self._number}, payload)
        except BrokenPipeError:
            raise _Gone from None

    def _read(self) -> frames.Frame:
        frame = frames.read(self.output)
        if frame is None:
            raise _Gone
        if not frame.header.keys().isdisjoint(_LAST):
            self.busy = False
        if "user_error" in frame.header:
            raise UserError(frame.header["user_error"])
        if "failure" in frame.header:
            raise ClientFailure(frame.header["failure"])
        return frame

    def _replace(self) -> None:
        """Another process takes over: it gets the clients as they stood, and does what is left of the request."""
        header, payload = self._request
        while True:
            self._tell_death()
            self.close()
            self.process = _new_process()
            try:
                if header["request"] != "start":
                    self._write({**self._start.header, "answered": sorted(self._answered)}, self._start.payload)
                    self._read()
                    self.busy = True
                left = [client for client in header.get("clients", ()) if client not in self._answered]
                self._write({**header, "clients": left}, payload)
            except _Gone:
                continue
            return

    def _tell_death(self) -> None:
        """Say that the process has died; a ClientFailure if it is one time too many."""
        header, code = self._request.header, self.process.wait()
        asked = [header["client"]] if "client" in header else header.get("clients", [])
        at = next((client for client in asked if client not in self._answered), None)
        self._deaths[at] += 1
        what = f"'{header['request']}'" + ("" if at is None else f" of client {at} ('{self.names.get(at, '')}')")
        ended = f"ended with code {code} (negative: killed by that signal; -9 is often a lack of memory)"
        if self._deaths[at] >= MOST_DEATHS:
            self.busy = False
            raise ClientFailure(f"{what} failed: its worker process {ended}, {self._deaths[at]} times in a row")
        log.warning("a worker process %s at %s; another one goes on in its place", ended, what)


def _new_process() -> subprocess.Popen[bytes]:
    # A session of their own: Ctrl-C reaches this process only, which then ends them in good order.
    process = subprocess.Popen(  # noqa: S603 - our own module with our own interpreter
        _COMMAND,
        bufsize=0,  # a frame left in a buffer of ours would be invisible to the selector
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_ENVIRONMENT},
        start_new_session=True,
    )
    for stream in (process.stdin, process.stdout):
        _make_room(cast(IO[bytes], stream))
    return process


def _make_room(pipe: IO[bytes]) -> None:
    """Let a message lie in the pipe as a whole, so that who wrote it goes on before it is read."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # a user may have so many pages of pipes and no more
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _ROOM)
