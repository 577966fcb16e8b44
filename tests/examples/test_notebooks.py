"""The notebooks run from their first cell to their last, and are committed without outputs."""

import asyncio
import json
import sys
import warnings
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def run(path: Path, folder: Path) -> list[str]:
    """What each cell printed."""
    import nbformat
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class Here(KernelSpecManager):
        """The kernel is this Python, whatever else is installed for the user."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])

    book = nbformat.read(path, as_version=4)
    manager = AsyncKernelManager(kernel_spec_manager=Here(), kernel_name="python3")
    client = NotebookClient(book, km=manager, timeout=300, resources={"metadata": {"path": str(folder)}})
    asyncio.run(client.async_execute())
    told = [[out.get("text", "") for out in cell.get("outputs", [])] for cell in book.cells]
    return ["".join(texts) for texts in told]


@pytest.fixture(autouse=True)
def _jupyter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's is read or written."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=ResourceWarning)


def test_the_tour(tmp_path: Path) -> None:
    told = "\n".join(run(ROOT / "examples" / "notebooks" / "tour.ipynb", tmp_path))
    assert "stopped after round 1" in told
    assert "<Round 5: 3 turns" in told
    assert "refused: early stopping: the sites are scored on test records" in told
    assert "of 30 rounds: NLL on validation records was best in round" in told


def test_own_method(tmp_path: Path) -> None:
    told = "\n".join(run(ROOT / "examples" / "notebooks" / "own_method.ipynb", tmp_path))
    assert "<Round 3: 5 turns" in told
    assert "median   own" in told


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_committed(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
