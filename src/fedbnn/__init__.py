"""Bayesian federated learning among unequal partners.

From a configuration:   `fedbnn.run(fedbnn.Config(...), Path("runs/mine"))`
From a run folder:      `fedbnn.load("runs/mine").predict("client-0", x, alpha=0.1)`
Piece by piece:         `load_dataset` -> `federate` -> `make_sites` -> `Federation(method, sites).run(rounds)`
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedbnn.base.version import __version__ as __version__

if sys.platform == "win32":
    # os.open of a folder, to have its names on disk, and O_CLOEXEC: run folders and ledgers rest on both.
    raise ImportError("fedbnn runs on Linux and macOS, not on Windows itself: install it in WSL 2")

if TYPE_CHECKING:
    from fedbnn.base.errors import UserError
    from fedbnn.data import Dataset, DataSettings, FederatedData, PartitionSettings, federate, load_dataset
    from fedbnn.deployment.estimated import SiteEstimate
    from fedbnn.deployment.estimator import estimator
    from fedbnn.deployment.export import export
    from fedbnn.deployment.loaded import LoadedRun, load
    from fedbnn.deployment.predict import SitePrediction
    from fedbnn.deployment.start import run
    from fedbnn.federation.calibrated import Wish
    from fedbnn.federation.engines import InProcess, WorkerPool
    from fedbnn.federation.loop import Federation
    from fedbnn.federation.message import Message
    from fedbnn.federation.method import Method
    from fedbnn.federation.parties import Client
    from fedbnn.federation.sites import make_sites
    from fedbnn.methods import (
        FOLA,
        DPFedAvg,
        FedAvg,
        FedBNN,
        FedBNNPaper,
        FedDF,
        FedMD,
        FedProx,
        Local,
        LocalBNN,
        PFedBayes,
        PFedGP,
        PFedMe,
    )
    from fedbnn.models.abstention import Abstention
    from fedbnn.models.architectures import ModelSettings
    from fedbnn.models.bayes import Prediction
    from fedbnn.models.conformal import Conformal
    from fedbnn.models.regression import Mixture, Scale
    from fedbnn.models.training import TrainingSettings
    from fedbnn.privacy import PrivacySettings
    from fedbnn.runs.checkpointing import Checkpointing
    from fedbnn.runs.config import Config, load_config
    from fedbnn.runs.early_stopping import EarlyStopping
    from fedbnn.runs.experiment import compare
    from fedbnn.runs.loggers import MLflow, TensorBoard
    from fedbnn.runs.observer import Observer

__all__ = [
    "FOLA",
    "Abstention",
    "Checkpointing",
    "Client",
    "Config",
    "Conformal",
    "DPFedAvg",
    "DataSettings",
    "Dataset",
    "EarlyStopping",
    "FedAvg",
    "FedBNN",
    "FedBNNPaper",
    "FedDF",
    "FedMD",
    "FedProx",
    "FederatedData",
    "Federation",
    "InProcess",
    "LoadedRun",
    "Local",
    "LocalBNN",
    "MLflow",
    "Message",
    "Method",
    "Mixture",
    "ModelSettings",
    "Observer",
    "PFedBayes",
    "PFedGP",
    "PFedMe",
    "PartitionSettings",
    "Prediction",
    "PrivacySettings",
    "Scale",
    "SiteEstimate",
    "SitePrediction",
    "TensorBoard",
    "TrainingSettings",
    "UserError",
    "Wish",
    "WorkerPool",
    "compare",
    "estimator",
    "export",
    "federate",
    "load",
    "load_config",
    "load_dataset",
    "make_sites",
    "run",
]

_PLACES = {
    "fedbnn.base.errors": "UserError",
    "fedbnn.data": "Dataset DataSettings FederatedData PartitionSettings federate load_dataset",
    "fedbnn.deployment.estimated": "SiteEstimate",
    "fedbnn.deployment.estimator": "estimator",
    "fedbnn.deployment.export": "export",
    "fedbnn.deployment.loaded": "LoadedRun load",
    "fedbnn.deployment.predict": "SitePrediction",
    "fedbnn.deployment.start": "run",
    "fedbnn.federation.calibrated": "Wish",
    "fedbnn.federation.engines": "InProcess WorkerPool",
    "fedbnn.federation.loop": "Federation",
    "fedbnn.federation.message": "Message",
    "fedbnn.federation.method": "Method",
    "fedbnn.federation.parties": "Client",
    "fedbnn.federation.sites": "make_sites",
    "fedbnn.methods": "FOLA DPFedAvg FedAvg FedBNN FedBNNPaper FedDF FedMD "
    "FedProx Local LocalBNN PFedBayes PFedGP PFedMe",
    "fedbnn.models.abstention": "Abstention",
    "fedbnn.models.architectures": "ModelSettings",
    "fedbnn.models.bayes": "Prediction",
    "fedbnn.models.conformal": "Conformal",
    "fedbnn.models.regression": "Mixture Scale",
    "fedbnn.models.training": "TrainingSettings",
    "fedbnn.privacy": "PrivacySettings",
    "fedbnn.runs.checkpointing": "Checkpointing",
    "fedbnn.runs.config": "Config load_config",
    "fedbnn.runs.early_stopping": "EarlyStopping",
    "fedbnn.runs.experiment": "compare",
    "fedbnn.runs.loggers": "MLflow TensorBoard",
    "fedbnn.runs.observer": "Observer",
}
"""Where each public name comes from: it is imported on first use, so that `fedbnn --help` need not wait for torch."""
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedbnn' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
