"""Models and methods that lie in the current folder, which a console script does not look in by itself."""

import json
import sys
from pathlib import Path

import pytest

from fedbnn.cli.app import main

CODE = """
import math
from torch import nn
from fedbnn.base.settings import settings
from fedbnn.methods import FedMD

def narrow(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 7), nn.ReLU(), nn.Linear(7, classes))

@settings
class Ours(FedMD):
    name = "ours"
    summary = "FedMD by another name"
"""


def test_worker_processes_find_them(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = [entry for entry in sys.path if entry not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", elsewhere)
    Path("corner_of_mine.py").write_text(CODE, encoding="utf-8")
    found = []
    for engine in ("debug=true", "workers=2"):
        changes = [
            "rounds=1", "partition.clients=2", "data.alignment=20", "training.warmup_epochs=1",
            "training.local_epochs=1",
            "models=[{name='corner_of_mine:narrow'}]", "method='corner_of_mine:Ours'", "methods.ours.digest_steps=2",
            f"engine.{engine}",
        ]  # fmt: skip
        out = engine.partition("=")[0]
        with pytest.raises(SystemExit) as ended:
            main(["run", "--out", out, *(word for change in changes for word in ("--set", change))])
        assert not ended.value.code
        found.append(json.loads(Path(out, "result.json").read_text(encoding="utf-8"))["per_client"])
    assert found[0]["model"] == ["corner_of_mine:narrow"] * 2
    assert found[0]["nll"] == found[1]["nll"]
