"""Every method, one file each, under its name in the configuration."""

from typing import Any

from fedbnn.federation.method import Method
from fedbnn.methods.apfl import APFL
from fedbnn.methods.beta_predbayes import BetaPredBayes
from fedbnn.methods.ditto import Ditto
from fedbnn.methods.dp_fedavg import DPFedAvg
from fedbnn.methods.dp_fedsgd import DPFedSGD
from fedbnn.methods.dp_scaffold import DPScaffold
from fedbnn.methods.fedavg import FedAvg
from fedbnn.methods.fedbe import FedBE
from fedbnn.methods.fedbn import FedBN
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
from fedbnn.methods.ifca import IFCA
from fedbnn.methods.local import Local
from fedbnn.methods.local_bnn import LocalBNN
from fedbnn.methods.lr_bpfl import LRBPFL
from fedbnn.methods.mocha import MOCHA
from fedbnn.methods.pate import Pate
from fedbnn.methods.perfedavg import PerFedAvg
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
        Ditto,
        PerFedAvg,
        APFL,
        IFCA,
        MOCHA,
        FedBN,
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
    "APFL",
    "FML",
    "FOLA",
    "IFCA",
    "LRBPFL",
    "METHODS",
    "MOCHA",
    "PVI",
    "BetaPredBayes",
    "DPFedAvg",
    "DPFedSGD",
    "DPScaffold",
    "Ditto",
    "FedAvg",
    "FedBE",
    "FedBN",
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
    "PerFedAvg",
    "Scaffold",
]
