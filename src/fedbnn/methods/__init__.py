"""Every method, one file each, under its name in the configuration."""

from typing import Any

from fedbnn.method import Method
from fedbnn.methods.fedbnn import FedBNN
from fedbnn.methods.fedmd import FedMD
from fedbnn.methods.local import Local
from fedbnn.methods.local_bnn import LocalBNN

METHODS: dict[str, type[Method[Any, Any]]] = {cls.name: cls for cls in (FedBNN, FedMD, LocalBNN, Local)}

__all__ = ["METHODS", "FedBNN", "FedMD", "Local", "LocalBNN"]
