"""Bayesian federated learning among unequal partners.

From a configuration:   `fedbnn.run(fedbnn.Config(...), Path("runs/mine"))`
Piece by piece:         `load_dataset` -> `federate` -> `make_sites` -> `Federation(method, sites).run(rounds)`
"""

from fedbnn.base.errors import UserError
from fedbnn.base.version import __version__ as __version__
from fedbnn.data import Dataset, DataSettings, FederatedData, PartitionSettings, federate, load_dataset
from fedbnn.deployment.start import run
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
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.bayes import Prediction
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
    "Checkpointing",
    "Client",
    "Config",
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
    "Local",
    "LocalBNN",
    "MLflow",
    "Message",
    "Method",
    "ModelSettings",
    "Observer",
    "PFedBayes",
    "PFedGP",
    "PFedMe",
    "PartitionSettings",
    "Prediction",
    "PrivacySettings",
    "TensorBoard",
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
