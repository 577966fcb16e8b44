"""Bayesian federated learning among unequal partners.

From a configuration:   `fedbnn.run(fedbnn.Config(...), Path("runs/mine"))`
Piece by piece:         `load_dataset` -> `federate` -> `make_sites` -> `Federation(method, sites).run(rounds)`
"""

__version__ = "0.1.0"

from fedbnn.bayes import Prediction
from fedbnn.config import Config, load_config
from fedbnn.data import Dataset, DataSettings, FederatedData, PartitionSettings, federate, load_dataset
from fedbnn.engines import InProcess, WorkerPool
from fedbnn.errors import UserError
from fedbnn.experiment import compare, run
from fedbnn.federation import Federation
from fedbnn.message import Message
from fedbnn.method import Client, Method
from fedbnn.methods import (
    FOLA,
    DPFedAvg,
    FedAvg,
    FedBNN,
    FedDF,
    FedMD,
    FedProx,
    Local,
    LocalBNN,
    PFedBayes,
    PFedGP,
    PFedMe,
)
from fedbnn.models import ModelSettings
from fedbnn.privacy import PrivacySettings
from fedbnn.sites import make_sites
from fedbnn.training import TrainingSettings

__all__ = [
    "FOLA",
    "Client",
    "Config",
    "DPFedAvg",
    "DataSettings",
    "Dataset",
    "FedAvg",
    "FedBNN",
    "FedDF",
    "FedMD",
    "FedProx",
    "FederatedData",
    "Federation",
    "InProcess",
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
    "TrainingSettings",
    "UserError",
    "WorkerPool",
    "compare",
    "federate",
    "load_config",
    "load_dataset",
    "make_sites",
    "run",
]
