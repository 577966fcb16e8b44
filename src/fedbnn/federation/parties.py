"""What the two sides of a federation may see: a client its own records and model, the server who takes part.

Both see the public alignment set.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.data.identity import identify, numbering
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import average
from fedbnn.models.label_prior import smoothed_shares
from fedbnn.models.network import FlatNetwork
from fedbnn.models.regression import OUTPUTS, Answer, Measured, Scale, mixture_over
from fedbnn.models.training import Records, TrainingSettings
from fedbnn.privacy import Account, Budget, PrivacySettings, ReleaseGate


@dataclass(frozen=True)
class Client:
    """What a client's half may see: its own records, its own model, and the public alignment set."""

    index: int
    name: str
    train: Records
    alignment: Tensor = field(repr=False)
    classes: int  # 0: regression, whose targets are real numbers
    model: ModelSettings
    training: TrainingSettings
    rounds: int  # exchanges that are planned: a budget that is spent a piece a round is divided by it
    seed: int
    privacy: PrivacySettings = field(default_factory=PrivacySettings)  # the client's own: no server changes them
    multiplicity: int = 1  # the largest number of clients that hold one and the same record
    ledgers: Path | None = None  # folder of this client's ledgers, one for each set of records
    identity: Tensor | None = field(default=None, repr=False)  # which records: as they were, see `data.identity`
    clients: int = 1  # how many there are in all
    signers: tuple[str, ...] = ()  # public keys of all clients for secure aggregation (Ed25519, hex), if agreed on
    signing_key: Path | None = None  # file with the private half of the own one
    cap: Budget | None = None  # the most that all releases from its records may cost, ever; None: what the run may
    run: str = ""  # what tells this run's charges from those of others
    disjoint: bool = False  # the owner of the ledgers declares that its sets of records are of different people
    scale: Scale | None = None  # of the target in regression: `train` has it standardised

    @property
    def regression(self) -> bool:
        return self.classes == 0

    @property
    def outputs(self) -> int:
        """How many numbers its network gives for a record."""
        return self.classes or OUTPUTS

    @property
    def device(self) -> torch.device:
        """Where its half is computed: where its records are."""
        return self.train.x.device

    def account(self, budget: Budget, joined: Budget | None = None) -> Account:
        """Where all that leaves under a promise is charged: the ledgers of this client's records."""
        if self.ledgers is None:
            raise UserError(
                f"client '{self.name}': what leaves under privacy needs a place for ledgers of what is spent: "
                "make_sites(..., ledgers=folder)"
            )
        if self.identity is None:
            x, labels = self.train.x.cpu().numpy(), [str(label) for label in self.train.y.tolist()]
            identity = identify(x, labels)
        else:
            identity = self.identity.numpy()
        occasion = "" if self.run else numbering(identity, self.train.y.cpu().numpy())
        return Account(self.ledgers, identity, self.name, budget, self.cap, self.run, self.disjoint, occasion, joined)

    @property
    def own_shares(self) -> Tensor:
        """How common each class is among its records, as a label prior."""
        return smoothed_shares(self.train.y, self.classes)

    @property
    def gate(self) -> ReleaseGate:
        """The way out for sums and outputs under `privacy`. Works on the CPU, on whole numbers in double precision."""
        return ReleaseGate(
            self.train.x.cpu(),
            self.train.y.cpu(),
            self.classes,
            self.alignment.cpu(),
            self.privacy,
            self.rounds,
            self.multiplicity,
            self.account(
                self.privacy.cap(self.rounds, self.multiplicity, self.clients),
                self.privacy.joined_budget if self.privacy.secure else None,
            ),
            self.clients,
        )

    @property
    def network(self) -> FlatNetwork:
        """The client's architecture. Scratch space, shared by all clients of this process with the same model:
        whoever uses it first writes the weights it wants.
        """
        return self.network_with(self.outputs)

    def network_with(self, outputs: int) -> FlatNetwork:
        """The client's architecture with another number of outputs, e.g. as an embedding."""
        shape = tuple(self.train.x.shape[1:])
        return _scratch(json.dumps(asdict(self.model)), shape, outputs, self.seed, self.device)

    def initial_weights(self) -> Tensor:
        """Weights as the model's own initialisation draws them for this client."""
        weights = _initial(self.model, tuple(self.train.x.shape[1:]), self.outputs, self.seed, self.index)
        return weights.to(self.device)

    def says(self, weights: Iterator[Tensor], x: Tensor) -> Answer:
        """What its network says of x over these weight vectors, each as likely as the others."""
        return mixture_over(self.network, weights, x) if self.regression else average(self.network, weights, x)

    def taught(self, target: Tensor) -> Records:
        """The alignment set with a target: class probabilities, or in regression means and log variances."""
        of_gaussians = Measured.of_gaussians
        return of_gaussians(self.alignment, target) if self.regression else Records(self.alignment, target)


@lru_cache(maxsize=16)
def _scratch(model: str, shape: tuple[int, ...], outputs: int, seed: int, device: torch.device) -> FlatNetwork:
    settings = TypeAdapter(ModelSettings).validate_json(model)
    return FlatNetwork(lambda: build(settings, shape, outputs), Stream((seed, "scratch")).seed, device)


def _initial(model: ModelSettings, shape: tuple[int, ...], outputs: int, seed: int, index: int) -> Tensor:
    return FlatNetwork(lambda: build(model, shape, outputs), Stream((seed, "model", index)).seed).weights


@dataclass(frozen=True)
class Roster:
    """What the server knows: who takes part with which model, which classes, and the public alignment set."""

    names: tuple[str, ...]
    classes: int  # as in `Client`
    alignment: Tensor = field(repr=False)
    models: tuple[ModelSettings, ...]
    rounds: int  # exchanges that are planned
    seed: int
    privacy: PrivacySettings = field(default_factory=PrivacySettings)  # the mechanism that was agreed on
    signers: tuple[str, ...] = ()  # as in `Client`
    ledgers: Path | None = None  # folder of the server's own ledgers, where it is the server that adds the noise
    multiplicity: int = 1  # as in `Client`, where all have agreed on it
    run: str = ""  # as in `Client`

    def account(self, budget: Budget) -> Account:
        """Where the server charges what it releases about whole clients: these are its records, by their names."""
        if self.ledgers is None:
            raise UserError("noise that the server adds needs a place for its ledger: make_sites(..., ledgers=folder)")
        names = identify(np.zeros((self.clients, 0), np.float32), self.names)
        return Account(self.ledgers, names, "server", budget, run=self.run)

    @property
    def clients(self) -> int:
        return len(self.names)

    @property
    def regression(self) -> bool:
        return self.classes == 0

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record."""
        return self.classes or OUTPUTS

    def network(self, client: int, outputs: int | None = None) -> FlatNetwork:
        """A client's architecture: scratch space, as `Client.network`."""
        shape = tuple(self.alignment.shape[1:])
        model, device = json.dumps(asdict(self.models[client])), self.alignment.device
        return _scratch(model, shape, outputs or self.outputs, self.seed, device)

    def initial_weights(self, client: int, outputs: int | None = None) -> Tensor:
        """Weights as this client's model would start with, were it on its own."""
        shape = tuple(self.alignment.shape[1:])
        return _initial(self.models[client], shape, outputs or self.outputs, self.seed, client)
