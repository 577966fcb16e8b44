"""Regression among a few sites: a table that ships with scikit-learn, dealt, and a table of hospitals in files."""

from pathlib import Path

import numpy as np
import pandas

from fedbnn.runs.config import Config, load_config
from tests.deployment.deployment_sample import small_config

DIABETES = ("data.source=diabetes", "data.task=regression", "partition.kind=iid")
MEAN, SD = 90.0, 10.0
LINEAR = 'models=[{name="mlp",options={hidden=[]}}]'


def diabetes(method: str = "fedbnn", *changes: str) -> Config:
    return small_config(method, *DIABETES, *changes)


def stays(records: int = 120, seed: int = 0) -> pandas.DataFrame:
    """Days in two hospitals: a number of its own for every record, of every other one a whole number."""
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(50, 10, records).round(3), rng.normal(size=records).round(3)
    days = (40 + age - 3 * dose + rng.normal(0, 2, records)).round(3) + 0.0005
    days[::2] = rng.choice(np.arange(60, 60 + records), len(days[::2]), replace=False)
    assert len(set(days)) == records
    ward = np.where(dose > 0, "A", "B")
    place = np.where(np.arange(records) % 2, "north", "south")
    return pandas.DataFrame({"age": age, "ward": ward, "dose": dose, "hospital": place, "days": days})


def hospitals(table: Path, *changes: str) -> Config:
    """A configuration of the table of both hospitals."""
    return load_config(
        None,
        (
            "method=fedavg",
            "rounds=1",
            "data.source=csv",
            f"data.path={table}",
            "data.task=regression",
            "data.target=days",
            "data.client_column=hospital",
            f"data.target_mean={MEAN}",
            f"data.target_sd={SD}",
            "data.alignment=20",
            "partition.kind=natural",
            "training.warmup_epochs=2",
            "training.local_epochs=1",
            "engine.debug=true",
            LINEAR,
            *changes,
        ),
    )
