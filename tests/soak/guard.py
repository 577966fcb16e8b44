"""Sees what a reader does besides reading: Python tells an audit hook before it starts, imports, executes or writes."""

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

NEVER = {
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "subprocess.Popen",
    "pty.spawn", "socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "webbrowser.open",
    "ctypes.dlopen", "pickle.find_class", "code.__new__", "os.putenv", "os.kill",
}  # fmt: skip
CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod", "os.truncate",
           "shutil.rmtree", "shutil.move", "shutil.copyfile"}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ODD_MODULES = {"antigravity", "this", "idlelib", "turtledemo"}  # of the standard library, and nobody's to import
MAKERS = {"dataclasses", "collections", "enum", "typing", "jinja2", "pydantic", "attr"}
"""Who executes text of its own making: classes and templates."""


class Executed(BaseException):
    """Raised in place of what is not to be done; no reader takes it for a broken file."""


class Guard:
    """On from `start` to `stop`: what is done meanwhile that no reader does ends the reading.

    Files are written in `folder` alone. With `own_code`, modules that the input names may be looked for.
    """

    def __init__(self, folder: Path, own_code: bool) -> None:
        self.folder, self.own_code = str(folder.resolve()), own_code
        self.on = False
        self.seen = ""  # what was done first, also where a reader has swallowed the error
        self._known = ({name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names) - ODD_MODULES
        self._trusted = (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2]))
        sys.addaudithook(self._hear)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]  # no event tells of importlib.import_module

    def start(self) -> None:
        self.seen, self.on = "", True

    def stop(self) -> None:
        self.on = False

    def find_spec(self, name: str, *_: Any) -> None:
        """Asked before anybody else where a module is that is not loaded yet."""
        if self.on and not self.own_code and name.partition(".")[0] not in self._known:
            self._end(f"import of {name!r:.200}")

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if self.on and (problem := self._problem(event, given)):
            self._end(problem)

    def _end(self, problem: str) -> NoReturn:
        self.seen = self.seen or problem
        raise Executed(problem)

    def _problem(self, event: str, given: tuple[Any, ...]) -> str:
        if event in NEVER:
            return f"{event} {given!r:.200}"
        if event == "exec":
            return self._executed(given[0])
        if event == "open":
            path, _, flags = given
            writes = isinstance(flags, int) and flags & WRITING and not isinstance(path, int)
            return f"{path!r:.200} is opened for writing" if writes and not self._ours(path) else ""
        if event in CHANGES:
            paths = [one for one in given if isinstance(one, str | bytes | os.PathLike)]
            return "" if all(map(self._ours, paths)) else f"{event} {given!r:.200}"
        return ""

    def _executed(self, code: Any) -> str:
        """Modules of what is installed, and classes and templates that are made while it runs."""
        name = getattr(code, "co_filename", "")
        if name.startswith(self._trusted) or name.startswith("<frozen "):
            return ""
        frame = sys._getframe(3)  # who executes
        caller = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        return "" if caller in MAKERS else f"{caller} executes {name!r:.200}"

    def _ours(self, path: Any) -> bool:
        full = os.path.realpath(os.fsdecode(path))  # pathlib would be heard, too
        return full == "/dev/null" or full.startswith(self.folder)
