"""A made-up regression: y = 3 + 2 x_0 - x_1 + noise of a known spread, in units of its own."""

from typing import Any

import numpy as np

from fedbnn.data import DataSettings, PartitionSettings, federate
from fedbnn.data.dataset import Dataset
from fedbnn.data.federated import FederatedData
from fedbnn.federation.engines import Site
from fedbnn.federation.sites import make_sites
from fedbnn.methods import (
    APFL,
    FOLA,
    IFCA,
    LRBPFL,
    MOCHA,
    PVI,
    Ditto,
    FedAvg,
    FedBNN,
    FedBNNPaper,
    FedDyn,
    FedHeNN,
    FedMA,
    FedMD,
    FedOpt,
    FedPA,
    FedPD,
    FedProx,
    FedSplit,
    FlexiFed,
    Local,
    LocalBNN,
    PerFedAvg,
    PFedBayes,
    PFedMe,
    Scaffold,
)
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.regression import Scale
from fedbnn.models.training import TrainingSettings

NOISE = 20.0
SCALE = Scale(100.0, 50.0)
LINEAR = ModelSettings("mlp", options={"hidden": []})
SMALL = ModelSettings("mlp", options={"hidden": [6]})

METHODS = (
    FedBNN(prior_steps=3, mc_samples=2, network_every=2),
    FedBNNPaper(prior_steps=3, mc_samples=2),
    FedBNNPaper(prior_steps=3, mc_samples=2, consensus="mean_probabilities"),
    FedMD(digest_steps=3),
    FedAvg(),
    FedProx(mu=0.5),
    PFedMe(iterations=3, inner_steps=2),
    MOCHA(),
    IFCA(),
    APFL(alpha_rate=0.5),
    PerFedAvg(),
    Ditto(strength=0.5),
    Scaffold(),
    FedOpt(optimiser="yogi"),
    FedDyn(alpha=0.5),
    FedPD(eta=2.0),
    FedSplit(strength=2.0),
    PFedBayes(iterations=3, inner_steps=2, mc_samples=2),
    FOLA(),
    FedHeNN(points=10, align_batch=5),
    FlexiFed(),
    PVI(mc_samples=2),
    FedPA(samples=3),
    LRBPFL(mc_samples=2, rank=1),
    FedMA(sweeps=2, common_start=False),
    LocalBNN(mc_samples=2),
    Local(),
)


def linear_data(records: int = 120, tests: int = 60, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(records + tests, 3)).astype(np.float32)
    y = (100 + 30 * x[:, 0] - 15 * x[:, 1] + rng.normal(0, NOISE, size=len(x))).astype(np.float32)
    return Dataset("linear", x[:records], y[:records], x[records:], y[records:], (), scale=SCALE)


def dealt(data: Dataset, clients: int = 3, alignment: int = 20, **more: Any) -> FederatedData:
    settings = DataSettings(task="regression", alignment=alignment, **more)
    return federate(data, settings, PartitionSettings(kind="iid", clients=clients), 0)


def linear_sites(
    records: int = 120,
    clients: int = 3,
    model: ModelSettings = SMALL,
    training: TrainingSettings | None = None,
    tests: int = 60,
    **more: Any,
) -> list[Site]:
    training = training or TrainingSettings(local_epochs=1, warmup_epochs=2, batch_size=16)
    return make_sites(dealt(linear_data(records, tests), clients), [model], training, **more)
