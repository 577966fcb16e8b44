"""A plan so small that all of it runs in a few seconds: digits, three clients, one round."""

import json
from pathlib import Path

import pytest

from fedbnn.reproduce import driver
from fedbnn.reproduce.plan import load

DIGITS = """
rounds = 1
models = [{ name = "mlp", options = { hidden = [8] } }]
data = { source = "digits", alignment = 20 }
partition = { clients = 3, records_per_class = 4 }
training = { warmup_epochs = 1, local_epochs = 1 }
engine = { debug = true }

[methods.fedbnn]
prior_steps = 2
mc_samples = 2
"""

PLAN = """
title = "In the smallest"
about = ["Three clients & one round."]
seeds = [0, 1]

[sizes.small]
set = ["partition.records_per_class=2"]

[sizes.medium]
set = ["partition.records_per_class=3"]

[rows.fedavg]
title = "FedAvg"
method = "fedavg"
published = "FedAvg"

[rows.fedbnn]
title = "FedBNN"
method = "fedbnn"
published = "Ours (Homo)"

[rows.private]
title = "FedBNN, private"
method = "fedbnn"
set = ['privacy.mechanism="dp_teacher"', 'privacy.features="fourier"', "privacy.dimensions=8"]

[studies.table1]
kind = "table"
title = "Table 1"
scores = ["own_class_accuracy", "ece"]
rows = ["fedavg", "fedbnn", "private"]
columns = [{ data = "digits", size = "small" }, { data = "digits", size = "medium", seeds = [0] }]

[studies.figure2a]
kind = "curve"
title = "Figure 2a"
columns = [{ data = "digits", size = "small", seeds = [0] }]
x = "share of small clients"
percent = true

[[studies.figure2a.lines]]
row = "fedbnn"
title = "all clients"
points = [
    { x = 0.0, set = ['models=[{name="mlp",options={hidden=[8]}}]'] },
    { x = 0.5, set = ['models=[{name="mlp",options={hidden=[8]}},{name="cnn2",options={channels=[2,2],hidden=4}}]'] },
]

[[studies.figure2a.lines]]
row = "fedbnn"
title = "cnn2 only"
models = ["cnn2"]
points = [
    { x = 0.5, set = ['models=[{name="mlp",options={hidden=[8]}},{name="cnn2",options={channels=[2,2],hidden=4}}]'] },
]

[[studies.figure2a.lines]]
row = "fedavg"
title = "FedAvg everywhere"
scored = "fine_tuned"

[studies.calibration]
kind = "reliability"
title = "Calibration"
panels = [{ row = "fedbnn", data = "digits", size = "small" }]

[studies.cost]
kind = "cost"
title = "Cost"
rows = ["fedavg", "fedbnn"]
column = { data = "digits", size = "small" }
"""


def write_plan(folder: Path, plan: str = PLAN) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "digits.toml").write_text(DIGITS, encoding="utf-8")
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_plan(tmp_path / "tiny")


@pytest.fixture
def plan(folder):
    return load(folder)


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """Everything run once: the folder of the results, and the results of the runs by folder name."""
    base = tmp_path_factory.mktemp("done")
    plan = load(write_plan(base / "tiny"))
    work = driver.prepare(plan, driver.choose(plan, ["all"]), base / "runs")
    assert driver.run(work, base / "results") == []
    results = {path.parent.name: json.loads(path.read_text()) for path in (base / "runs").glob("*/result.json")}
    return base / "results", results, work
