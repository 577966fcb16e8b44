"""Every method, one file each, under its name in the configuration."""

from typing import Any

from fedbnn.federation.method import Method
from fedbnn.methods.beta_predbayes import BetaPredBayes
from fedbnn.methods.dp_fedavg import DPFedAvg
from fedbnn.methods.dp_fedsgd import DPFedSGD
from fedbnn.methods.dp_scaffold import DPScaffold
from fedbnn.methods.fedavg import FedAvg
from fedbnn.methods.fedbe import FedBE
from fedbnn.methods.fedbnn import FedBNN
from fedbnn.methods.fedbnn_paper import FedBNNPaper
from fedbnn.methods.feddf import FedDF
from fedbnn.methods.feddyn import FedDyn
from fedbnn.methods.fedhenn import FedHeNN
from fedbnn.methods.fedkd import FedKD
from fedbnn.methods.fedma import FedMA
from fedbnn.methods.fedmd import FedMD
from fedbnn.methods.fedopt import FedOpt
from fedbnn.methods.fedpa import FedPA
from fedbnn.methods.fedpd import FedPD
from fedbnn.methods.fedppd import FedPPD
from fedbnn.methods.fedproto import FedProto
from fedbnn.methods.fedprox import FedProx
from fedbnn.methods.fedrep import FedRep
from fedbnn.methods.fedsplit import FedSplit
from fedbnn.methods.flexifed import FlexiFed
from fedbnn.methods.fml import FML
from fedbnn.methods.fola import FOLA
from fedbnn.methods.local import Local
from fedbnn.methods.local_bnn import LocalBNN
from fedbnn.methods.lr_bpfl import LRBPFL
from fedbnn.methods.pate import Pate
from fedbnn.methods.pfedbayes import PFedBayes
from fedbnn.methods.pfedgp import PFedGP
from fedbnn.methods.pfedme import PFedMe
from fedbnn.methods.pvi import PVI
from fedbnn.methods.scaffold import Scaffold

METHODS: dict[str, type[Method[Any, Any]]] = {
    cls.name: cls
    for cls in (
        FedBNN,
        FedBNNPaper,
        FedMD,
        FedDF,
        FedAvg,
        FedProx,
        PFedMe,
        Scaffold,
        FedOpt,
        FedRep,
        FedDyn,
        FedPD,
        FedSplit,
        PFedBayes,
        PFedGP,
        FOLA,
        FedProto,
        FML,
        FedKD,
        FedHeNN,
        FlexiFed,
        FedBE,
        FedPA,
        PVI,
        FedPPD,
        BetaPredBayes,
        LRBPFL,
        FedMA,
        DPFedAvg,
        DPFedSGD,
        DPScaffold,
        Pate,
        LocalBNN,
        Local,
    )
}

__all__ = [
    "FML",
    "FOLA",
    "LRBPFL",
    "METHODS",
    "PVI",
    "BetaPredBayes",
    "DPFedAvg",
    "DPFedSGD",
    "DPScaffold",
    "FedAvg",
    "FedBE",
    "FedBNN",
    "FedBNNPaper",
    "FedDF",
    "FedDyn",
    "FedHeNN",
    "FedKD",
    "FedMA",
    "FedMD",
    "FedOpt",
    "FedPA",
    "FedPD",
    "FedPPD",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedSplit",
    "FlexiFed",
    "Local",
    "LocalBNN",
    "PFedBayes",
    "PFedGP",
    "PFedMe",
    "Pate",
    "Scaffold",
]
