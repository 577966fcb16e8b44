"""Serves the page that watches a run: on this machine only, four fixed answers, nothing that writes.

Who may ask: the socket is bound to 127.0.0.1, so nobody on another machine. A web page that the user visits elsewhere
cannot ask either: its requests name its own host, also where its name was made to point at 127.0.0.1 (DNS rebinding),
and only requests that name this address and port are answered; no answer allows other origins to read it. What is asked
for is looked up in a table and never becomes a path.
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import cast

from fedbnn.base.errors import UserError
from fedbnn.runs.standing import as_json, standings

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PARTS = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
STANDING = "/standing.json"


class WatchServer(ThreadingHTTPServer):
    """Shows the run or comparison in `folder`, which need not be there yet; port 0 takes a free one."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"--port {port} cannot be used: {reason}; choose another, or 0 for any that is free"
            ) from None
        here = files("fedbnn.runs.watch")
        self.parts = {path: (here.joinpath(name).read_bytes(), kind) for path, (name, kind) in PARTS.items()}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "fedbnn", ""
    timeout = 10.0  # seconds: whoever connects and says nothing does not stay

    def do_GET(self) -> None:
        server = cast(WatchServer, self.server)
        if self.headers.get_all("Host") not in ([f"{HOST}:{server.server_port}"], [f"localhost:{server.server_port}"]):
            self._answer(403, f"open {server.url} itself".encode())
        elif self.path == STANDING:
            self._answer(200, as_json(standings(server.folder)).encode(), "application/json")
        elif self.path in server.parts:
            self._answer(200, *server.parts[self.path])
        else:
            self._answer(404, b"there is nothing else here")

    do_HEAD = do_GET

    def _answer(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Other methods and what is no HTTP: the same headers, and nothing of what was asked."""
        self.close_connection = True
        self._answer(int(code), b"only GET is answered here")

    def log_message(self, format: str, *args: object) -> None:
        """The terminal is for the user."""
