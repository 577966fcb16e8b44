"""What `make soak` looks for, it finds: readers that do each of the things that no reader may do."""

import ctypes
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbnn.base.errors import UserError
from fedbnn.federation.message import BadMessage
from tests.fuzz.mutations import changed_bytes
from tests.fuzz.targets.target import Prepared, Target
from tests.soak.child import MIB
from tests.soak.watched import Soak, Tally

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
GOOD = b"good" * 4


def read(soak: Soak, on_others: Callable[[], Any], count: int = 3, given: bytes | None = None) -> Tally:
    """Inputs of a target that takes what is valid and does this with everything else."""

    def reader(data: bytes) -> None:
        if data != GOOD:
            on_others()

    target = Target("made up", "nothing", changed_bytes, lambda folder: Prepared([GOOD], [reader]))
    return soak.read(target, count, given)


def refuse() -> None:
    raise UserError("no")


def two_lines() -> None:
    raise BadMessage("one\ntwo")


def swallow() -> None:
    try:
        os.system("true")
    except BaseException:
        refuse()


def fill() -> None:
    held = bytearray(80 * MIB)
    assert held


def write_elsewhere() -> None:
    Path("/tmp/fedbnn-is-never-written").write_text("x")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda: {}["a"], "KeyError at test_soak.py"),
        (two_lines, "AssertionError at target.py"),
        (lambda: time.sleep(60), "hang: not read after 1 s"),
        (lambda: os._exit(3), "crash: exit code 3"),
        (lambda: ctypes.string_at(0), "crash: exit code -11: Fatal Python error: Segmentation fault"),
        (fill, "memory: "),
        (lambda: bytearray(2**40), "MemoryError"),
        (lambda: os.system("true"), "execution: os.system"),
        (swallow, "execution: os.system"),
        (lambda: subprocess.run(["true"], check=False), "execution: subprocess.Popen"),
        (lambda: exec("1 + 1"), "execution: tests executes '<string>'"),
        (lambda: importlib.import_module("antigravity"), "execution: import of 'antigravity'"),
        (lambda: importlib.import_module("trapped"), "execution: import of 'trapped'"),
        (write_elsewhere, "execution: '/tmp/fedbnn-is-never-written' is opened for writing"),
        (lambda: sys.exit(0), "SystemExit"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_every_harm_is_found_and_can_be_read_again(
    harm: Callable[[], Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soak = Soak(seed=0, seconds=1.0, memory=64 * MIB, out=tmp_path)
    tally = read(soak, harm)
    told = capsys.readouterr().out
    assert tally.inputs == 3
    assert len(tally.problems) == len(list(tmp_path.iterdir())) >= 2  # after a death, the next child goes on
    for problem, file in zip(tally.problems, sorted(tmp_path.iterdir()), strict=True):
        assert problem.startswith(words)
        assert f"--only 'made up' --replay {file}" in told
    again = read(soak, harm, 1, sorted(tmp_path.iterdir())[0].read_bytes())
    assert [one.startswith(words) for one in again.problems] == [True]


def test_what_readers_may_do_is_no_problem(tmp_path: Path) -> None:
    soak = Soak(seed=0, seconds=5.0, memory=64 * MIB, out=tmp_path / "none")
    assert read(soak, lambda: None, 20).counts == {"accepted": 20, "refused": 0}
    tally = read(soak, refuse, 20)
    assert tally.problems == []
    assert tally.counts["refused"] >= 18
    assert not (tmp_path / "none").exists()
