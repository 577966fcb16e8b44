"""`fedbnn watch` as a process: it says where to look, and Ctrl-C ends it alone."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest


def test_it_tells_its_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "fedbnn", "watch", str(tmp_path / "later")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background may have been told to ignore it; a terminal's programs have not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    assert process.stdout
    line = process.stdout.readline()
    url = line.split("open ")[1].split()[0]
    with urllib.request.urlopen(f"{url}standing.json", timeout=30) as answer:
        assert json.load(answer)[0]["state"] == "waiting"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, "no longer watching\n", "")
    assert not (tmp_path / "later").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{file}"], "is a file: give the folder of a run or of a comparison"),
        (["x", "--port", "70000"], "0<=x<=65535"),
        ([], "Missing argument 'RUN'"),
    ],
)
def test_mistakes(call, arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, errors = call("watch", *(one.format(file=tmp_path / "file") for one in arguments))
    assert code == 2
    assert words in errors
    assert "Traceback" not in errors
