"""Bayesian federated learning among unequal partners.

From a configuration:   `fedbnn.run(fedbnn.Config(...), Path("runs/mine"))`
From a run folder:      `fedbnn.load("runs/mine").predict("client-0", x, alpha=0.1)`
Piece by piece:         `load_dataset` -> `federate` -> `make_sites` -> `Federation(method, sites).run(rounds)`
"""

from fedbnn.base.errors import UserError
from fedbnn.base.version import __version__ as __version__
from fedbnn.data import Dataset, DataSettings, FederatedData, PartitionSettings, federate, load_dataset
from fedbnn.deployment.estimator import estimator
from fedbnn.deployment.export import export
from fedbnn.deployment.loaded import LoadedRun, load
from fedbnn.deployment.predict import SitePrediction
from fedbnn.deployment.start import run
from fedbnn.federation.calibrated import Wish
from fedbnn.federation.engines import InProcess, WorkerPool
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.federation.method import Client, Method
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
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings
from fedbnn.runs.config import Config, load_config
from fedbnn.runs.experiment import compare

__all__ = [
    "FOLA",
    "Abstention",
    "Client",
    "Config",
    "Conformal",
    "DPFedAvg",
    "DataSettings",
    "Dataset",
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
    "Message",
    "Method",
    "ModelSettings",
    "PFedBayes",
    "PFedGP",
    "PFedMe",
    "PartitionSettings",
    "Prediction",
    "PrivacySettings",
    "SitePrediction",
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
