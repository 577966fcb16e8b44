"""Runs of regression that take a second: the diabetes table, two clients."""

from pathlib import Path

import fedbnn
from fedbnn.deployment.loaded import LoadedRun
from fedbnn.models.regression import Scale
from fedbnn.runs.config import load_config

SCALE = Scale(150.0, 80.0)  # as published
DIABETES = (
    "method=fedavg",
    "rounds=1",
    "data.source=diabetes",
    "data.task=regression",
    "data.alignment=40",
    "data.calibration=0.3",
    "partition.kind=iid",
    "partition.clients=2",
    "training.warmup_epochs=20",
    "training.local_epochs=2",
    "methods.fedavg.learning_rate=0.05",
    "engine.debug=true",
    'models=[{name="mlp",options={hidden=[8]}}]',
)


def made(folder: Path, *changes: str) -> LoadedRun:
    fedbnn.run(load_config(None, [*DIABETES, *changes]), folder)
    return fedbnn.load(folder)
