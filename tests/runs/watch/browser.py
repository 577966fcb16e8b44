"""A headless Chromium, driven by the W3C WebDriver protocol that its driver speaks: JSON over HTTP, no package."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

DRIVER = shutil.which("chromedriver")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "" if DRIVER and CHROMIUM else "no chromium with its chromedriver on this machine"


class Browser:
    """One tab."""

    def __init__(self, session: str) -> None:
        self.session = session

    def __call__(self, command: str, **given: Any) -> Any:
        return post(f"{self.session}/{command}", given)

    def run(self, script: str) -> Any:
        """What a script of the page returns."""
        return self("execute/sync", script=script, args=[])

    def wait_for(self, script: str, seconds: float = 60.0) -> Any:
        """The first value of an expression that counts as true."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < end, (script, value, self.run("return document.body.innerText"))
            time.sleep(0.05)
        return value

    def screenshot(self, path: Path) -> None:
        with urllib.request.urlopen(f"{self.session}/screenshot", timeout=60) as answer:
            path.write_bytes(base64.b64decode(json.load(answer)["value"]))

    def console(self) -> list[str]:
        """What the page and the browser complained of, broken rules of the content policy included."""
        return [entry["message"] for entry in self("se/log", type="browser")]


def post(url: str, value: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(value).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["value"]


def answers(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A tab of a new browser with a profile of its own."""
    assert DRIVER
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,1000"]
    options = {"binary": CHROMIUM, "args": [*flags, f"--user-data-dir={profile}"]}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    session = ""
    try:
        address, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while not answers(port):
            assert time.monotonic() < end, "chromedriver does not start"
            time.sleep(0.05)
        found = post(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
        session = f"{address}/session/{found['sessionId']}"
        yield Browser(session)
    finally:
        with suppress(OSError):
            if session:
                urllib.request.urlopen(urllib.request.Request(session, method="DELETE"), timeout=30).close()
        driver.terminate()
        driver.wait()
