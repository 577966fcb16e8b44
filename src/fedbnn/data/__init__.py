"""Data: where records come from, who holds which, and what is public.

A data set is arrays in, arrays out. `load_dataset` reads one, `federate` deals its training records to
clients and holds out the alignment set (public, unlabelled) and the validation records.
"""

from fedbnn.data.dataset import Dataset
from fedbnn.data.dealing import federate
from fedbnn.data.federated import FederatedData
from fedbnn.data.partition import PartitionSettings
from fedbnn.data.settings import DataSettings
from fedbnn.data.sources import SOURCES, load_dataset

__all__ = [
    "SOURCES",
    "DataSettings",
    "Dataset",
    "FederatedData",
    "PartitionSettings",
    "federate",
    "load_dataset",
]
