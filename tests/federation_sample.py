"""A federation small enough for tests: digits, a few clients, three architectures or one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.dataset import Floats
from fedbnn.federation.engines import Site
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method
from fedbnn.federation.sites import make_sites
from fedbnn.methods import (
    APFL,
    FML,
    FOLA,
    IFCA,
    LRBPFL,
    MOCHA,
    PVI,
    BetaPredBayes,
    Ditto,
    DPFedAvg,
    DPFedSGD,
    DPScaffold,
    FedAvg,
    FedBE,
    FedBN,
    FedBNN,
    FedBNNPaper,
    FedDF,
    FedDyn,
    FedHeNN,
    FedKD,
    FedMA,
    FedMD,
    FedOpt,
    FedPA,
    FedPD,
    FedPPD,
    FedProto,
    FedProx,
    FedRep,
    FedSplit,
    FlexiFed,
    Local,
    LocalBNN,
    Pate,
    PerFedAvg,
    PFedBayes,
    PFedGP,
    PFedMe,
    Scaffold,
)
from fedbnn.models.augmentation import Augment
from fedbnn.models.training import TrainingSettings
from fedbnn.privacy import PrivacySettings

SMALL_METHODS: tuple[Method[Any, Any], ...] = (
    FedBNN(prior_steps=3, mc_samples=2, network_every=2),
    FedBNN(prior_steps=3, mc_samples=2, head=False, consensus="sharpened"),
    FedBNNPaper(prior_steps=3, mc_samples=2),
    FedBNNPaper(prior_steps=3, mc_samples=2, consensus="sharpened"),
    FedBNNPaper(prior_steps=3, mc_samples=2, consensus="corrected"),
    FedMD(digest_steps=3),
    FedDF(distill_steps=3),
    FedAvg(),
    FedProx(mu=0.5),
    PFedMe(iterations=3, inner_steps=2),
    Scaffold(),
    FedOpt(optimiser="yogi"),
    FedRep(),
    Ditto(strength=0.5),
    PerFedAvg(),
    PerFedAvg(inner_rate=0.1, curvature="first_order"),
    APFL(alpha_rate=0.5),
    IFCA(),
    MOCHA(),
    FedBN(),
    FedDyn(alpha=0.5),
    FedPD(eta=2.0),
    FedSplit(strength=2.0),
    PFedBayes(iterations=3, inner_steps=2, mc_samples=2),
    PFedGP(embedding=8, train_chains=2, test_chains=3, gibbs_steps=2, inner_steps=2, record_cap=10),
    FOLA(),
    FedProto(embedding=6),
    FedProto(embedding=6, answer="prototypes"),
    FML(messenger="mlp", messenger_options={"hidden": [4]}),
    FedKD(),
    FedHeNN(points=16, align_batch=8),
    FlexiFed(),
    FlexiFed(strategy="clustered"),
    FedBE(distill_steps=4, draws=2),
    FedPA(samples=2, shrinkage=0.1),
    PVI(mc_samples=2),
    FedPPD(temperature=0.1),
    FedPPD(share_teacher=False),
    BetaPredBayes(samples=2, distill_steps=3),
    LRBPFL(mc_samples=2, rank=1),
    FedMA(sweeps=2, common_start=False),
    DPFedAvg(noise="seed", steps=2),
    DPFedAvg(noise="seed", level="user"),
    DPFedSGD(noise="seed"),
    DPScaffold(noise="seed", steps=2),
    Pate(noise="seed", points=7, teachers=3, teacher_epochs=2, digest_steps=3),
    LocalBNN(mc_samples=2),
    Local(),
)


def normalised(shape: tuple[int, ...], classes: int, only: bool = False) -> nn.Module:
    """A model of the user's with a normalisation layer, of which nothing else is trained if `only`."""
    body = nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.LayerNorm(shape[1:]), nn.ReLU())
    model = nn.Sequential(body, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16, classes))
    if only:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("0.1."))
    return model


def described(method: Method[Any, Any]) -> str:
    """A name for a test of this method."""
    told = ("consensus", "head", "level", "answer", "strategy", "curvature")
    return "-".join([method.name, *(str(getattr(method, name)) for name in told if hasattr(method, name))])


def models_for(method: Method[Any, Any]) -> tuple[str, ...]:
    """Three architectures, or one for methods that average weights, or what such a method needs."""
    if isinstance(method, FlexiFed):
        return ("cnn2", "cnn3")
    if isinstance(method, FedBN):
        return ("tests.federation_sample:normalised",)
    return ("cnn2",) if method.one_architecture else ("mlp", "cnn2", "cnn3")


def first_message(method: Method[Any, Any], sites: Sequence[Site], client: int = 0) -> Message:
    """What a client receives in the warm-up."""
    return method.broadcast(method.server_init(roster_of(sites)), client)


def small_sites(
    clients: int = 4,
    seed: int = 0,
    models: tuple[str, ...] = ("mlp", "cnn2", "cnn3"),
    batch_size: int = 16,
    rounds: int = 12,
    privacy: PrivacySettings | None = None,
    ledgers: Path | None = None,
    augment: Augment = "none",
    foreign: Floats | None = None,
) -> list[Site]:
    data = DataSettings(alignment=30)
    partition = PartitionSettings(clients=clients, classes_per_client=3, records_per_class=4)
    training = TrainingSettings(local_epochs=1, warmup_epochs=2, batch_size=batch_size, augment=augment)
    dealt = federate(load_dataset(data), data, partition, seed)
    return make_sites(
        dealt, models, training, rounds=rounds, seed=seed, privacy=privacy, ledgers=ledgers, foreign=foreign
    )


def with_client(site: Site, **changes: Any) -> Site:
    """The site with some fields of its client changed."""
    return dataclasses.replace(site, client=dataclasses.replace(site.client, **changes))


def unequal(sites: Sequence[Site], counts: Sequence[int]) -> list[Site]:
    """The sites with this many records each, of the 12 that `small_sites` gives."""
    return [
        with_client(site, train=site.client.train.take(torch.arange(count)))
        for site, count in zip(sites, counts, strict=True)
    ]
