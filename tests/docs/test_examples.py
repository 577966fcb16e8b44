"""The scripts in examples/ run as they stand and show what they say."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


@pytest.fixture
def output(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """As `python examples/...` would, in this process: nothing in a script needs one of its own."""
    path = str(ROOT / "examples" / request.param)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("output", ["own_data.py"], indirect=True)
def test_own_data(output: str) -> None:
    """Clients learn of the class that they do not hold, and know when they do not know."""
    accuracy = [float(found) for found in re.findall(r"all-class accuracy (\S+)", output)]
    assert accuracy[-1] > accuracy[0] + 0.05
    usual, strange = (float(found) for found in re.findall(r"lack of knowledge (\S+)", output))
    assert strange > 3 * usual


@pytest.mark.parametrize("output", ["private.py"], indirect=True)
def test_private(output: str) -> None:
    """The budget is spent once; the same question again is free, and another one is refused."""
    spent = re.findall(r"6 ledgers, 1 release each, spent (\S+), left (\S+)", output)
    assert spent == [("3.000", "0.000")] * 3
    assert "refused: release" in output
    assert "epsilon 3.000 is spent on this data" in output


@pytest.mark.parametrize("output", ["bodies.py"], indirect=True)
def test_bodies(output: str) -> None:
    """Whatever they stand on, clients learn of digits that they do not hold: alone, four of ten is 0.4."""
    found = re.findall(r"(\w+): accuracy on all ten digits (\S+)", output)
    assert [kind for kind, _ in found] == ["edges", "waves", "small"]
    assert min(float(accuracy) for _, accuracy in found) > 0.85


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    whole = {"fedbabu.py", "fedloc.py", "thompson.py"}  # an algorithm of its own each
    assert len(path.read_text(encoding="utf-8").splitlines()) < (120 if path.name in whole else 60)
