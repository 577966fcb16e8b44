"""What the server of `fedbnn watch` answers, and to whom."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedbnn
from fedbnn.federation.loop import Round
from fedbnn.runs.watch.server import HEADERS, HOST, WatchServer
from tests.runs.run_sample import stopped, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "mine"
    (path.parent / "secret.txt").write_text("secret")
    return stopped(tiny("rounds=3"), path, 1)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[WatchServer]:
    yield from serving(folder)


def serving(folder: Path) -> Iterator[WatchServer]:
    with WatchServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: WatchServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def raw(server: WatchServer, request: bytes) -> bytes:
    with socket.create_connection((HOST, server.server_port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_it_listens_on_this_machine_alone(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_and_the_standing(server: WatchServer) -> None:
    code, headers, page = ask(server, "/")
    assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"http://" not in page
    assert b"https://" not in page  # nothing is loaded from elsewhere
    for path in ("/page.js", "/page.css"):
        code, headers, body = ask(server, path)
        assert code == 200
        assert body.replace(b"http://www.w3.org/2000/svg", b"").count(b"://") == 0
    code, headers, body = ask(server, "/standing.json")
    [run] = json.loads(body)
    assert (code, headers["Content-Type"]) == (200, "application/json")
    assert (run["name"], run["state"], run["round_number"], run["rounds"]) == ("mine", "unfinished", 1, 3)
    assert len(run["clients"]) == 2
    assert ask(server, "/standing.json", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("path", ["/", "/standing.json", "/nothing"])
def test_every_answer_forbids_other_pages_to_use_it(server: WatchServer, path: str) -> None:
    _, headers, _ = ask(server, path)
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Access-Control-Allow-Origin"] is None
    assert headers["Server"].strip() == "fedbnn"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost",
                                  "127.0.0.1:{port}.evil.example", "[::1]:{port}", "0.0.0.0:{port}", ""])  # fmt: skip
def test_a_name_that_was_made_to_point_here_is_refused(server: WatchServer, host: str) -> None:
    code, _, body = ask(server, "/standing.json", Host=host.format(port=server.server_port))
    assert code == 403
    assert b"mine" not in body


def test_no_host_and_two_hosts_are_refused(server: WatchServer) -> None:
    good = f"Host: 127.0.0.1:{server.server_port}\r\n".encode()
    assert raw(server, b"GET /standing.json HTTP/1.1\r\n" + good + b"\r\n").startswith(b"HTTP/1.0 200")
    for hosts in (b"", good + b"Host: evil.example\r\n", b"Host: evil.example\r\n" + good):
        assert raw(server, b"GET /standing.json HTTP/1.1\r\n" + hosts + b"\r\n").startswith(b"HTTP/1.0 403")


ELSEWHERE = (
    "/../secret.txt",
    "/%2e%2e/secret.txt",
    "/..%2fsecret.txt",
    "/..\\secret.txt",
    "//secret.txt",
    "/page.js/../../secret.txt",
    "/config.json",
    "/metrics.jsonl",
    "/page.html",
    "/server.py",
    "/./standing.json",
    "/standing.json/",
    "/standing.json?x=1",
    "http://127.0.0.1/standing.json",
    "*",
)


@pytest.mark.parametrize("path", ELSEWHERE)
def test_there_is_no_other_path(server: WatchServer, path: str) -> None:
    code, _, body = ask(server, path, Host=f"127.0.0.1:{server.server_port}")
    assert code == 404
    assert body == b"there is nothing else here"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_can_be_written(server: WatchServer, method: str, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, headers, body = ask(server, "/standing.json", method)
    assert (code, body) == (501, b"only GET is answered here")
    assert headers["Access-Control-Allow-Methods"] is None
    ask(server, "/standing.json")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_what_is_no_http_gets_no_answer_of_its_own_words(server: WatchServer) -> None:
    for request in (b"\x16\x03\x01\r\n\r\n", b"<script>alert(1)</script>\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        assert b"script" not in raw(server, request)
    assert ask(server, "/", "HEAD")[2] == b""


def test_it_waits_for_a_folder_and_follows_a_run_to_its_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    class Asks(fedbnn.Observer):
        """Looks at the page after each round, as a browser would."""

        def round_done(self, record: Round) -> None:
            [run] = json.loads(ask(server, "/standing.json")[2])
            seen.append((run["state"], run["round_number"]))

    for server in serving(tmp_path / "later"):
        assert json.loads(ask(server, "/standing.json")[2])[0]["state"] == "waiting"
        fedbnn.run(tiny("rounds=2"), tmp_path / "later", observer=Asks())
        assert json.loads(ask(server, "/standing.json")[2])[0]["state"] == "finished"
    assert [number for _, number in seen] == [0, 1, 2]
    assert {state for state, _ in seen} <= {"running", "unfinished"}


def test_a_port_in_use_is_one_line(server: WatchServer, tmp_path: Path) -> None:
    with pytest.raises(fedbnn.UserError, match=rf"--port {server.server_port} cannot be used: .*in use; choose"):
        WatchServer(tmp_path, server.server_port)
