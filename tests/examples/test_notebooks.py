"""The notebooks run from their first cell to their last (the tour: tests/journeys), and hold no outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def run(name: str, folder: Path) -> str:
    """What its cells printed. In a process of its own: what Jupyter leaves open is not the next test's."""
    script, path = ROOT / "tests" / "examples" / "run_notebook.py", ROOT / "examples" / "notebooks" / name
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    done = subprocess.run(
        [sys.executable, str(script), str(path), str(folder)],
        env=os.environ | {place: str(folder / place) for place in places},  # nothing of the user's is read or written
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_method(tmp_path: Path) -> None:
    told = run("own_method.ipynb", tmp_path)
    assert "<Round 3: 5 turns" in told
    assert "median   own" in told


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_committed(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
