"""A notebook: run, watch, stop, resume, plot, export. What its cells leave on disk is looked at too."""

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.examples.test_notebooks import run

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


def test_the_tour_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    told = run("tour.ipynb", tmp_path)
    assert "'running', round 2 of 3" in told  # watched over HTTP while it went on
    assert "stopped after round 1" in told
    assert "<Round 5: 3 turns" in told
    assert "refused: early stopping: the sites are scored on test records" in told
    assert "of 30 rounds: NLL on validation records was best in round" in told
    [exported] = [
        Path(line.removeprefix("exported to ")) for line in told.splitlines() if line.startswith("exported to ")
    ]
    curves = re.findall('<polyline points="(.*?)"', told)
    assert [len(points.split()) for points in curves] == [6, 6]  # warm-up and five rounds, of two scores
    result = json.loads((exported.parent / "mine" / "result.json").read_text(encoding="utf-8"))
    assert len(result["curve"]["round"]) == 6
    with safe_open(exported / "posterior.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["fedbnn"])
        assert (facts["client"], facts["round"]) == ("client-0", 5)
        assert any(name.startswith("state.") for name in file.keys())  # noqa: SIM118 - it is no dictionary
    assert "# Model card: client-0, fedbnn on digits" in (exported / "README.md").read_text(encoding="utf-8")
