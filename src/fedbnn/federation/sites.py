"""From dealt data to clients: each with its records, its architecture, and the records it is scored on."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from fedbnn.base.arguments import check_kind
from fedbnn.base.errors import UserError
from fedbnn.data import FederatedData
from fedbnn.data.dataset import Floats
from fedbnn.data.federated import Split
from fedbnn.federation.engines import Site
from fedbnn.federation.parties import Client
from fedbnn.models.architectures import Factory, ModelSettings, assign, settings_of
from fedbnn.models.network import probe
from fedbnn.models.regression import records_of
from fedbnn.models.training import Records, TrainingSettings, channels_last
from fedbnn.privacy import PrivacySettings


def make_sites(
    data: FederatedData,
    models: Sequence[ModelSettings | Factory | str] = ("mlp",),
    training: TrainingSettings | None = None,
    *,
    rounds: int = 12,
    seed: int = 0,
    split: Split = "test",
    privacy: PrivacySettings | None = None,
    ledgers: Path | None = None,
    identified: bool = False,
    foreign: Floats | None = None,
) -> list[Site]:
    """One site per client; the models are dealt by their shares. Checks every architecture before any work.

    A model is its settings, its name, or a function of your own.
    `rounds` is how many exchanges are planned; only methods that divide a privacy budget among them look at it.
    `ledgers` is the folder for what clients spend under a promise; the budget is for as long as the records exist.
    `identified` makes clients ready for ledgers that are given later.
    `foreign` are inputs as loaded that are nobody's, on which `Federation.evaluate` can try the models' uncertainty.
    Clients whose model stands on a body get all inputs as its features.
    A client without records of its own to be scored on takes part unscored; at least one must have some.
    """
    check_kind("data", data, FederatedData, "what fedbnn.federate returns")
    check_kind("models", models, (list, tuple), "a list of names, fedbnn.ModelSettings or functions")
    if not models:
        raise UserError("models: the list is empty; name at least one")
    check_kind("training", training, (TrainingSettings, type(None)), "fedbnn.TrainingSettings(...)")
    if split not in get_args(Split):
        raise UserError(f"split = {split!r}: it is {' or '.join(get_args(Split))}")
    settings = tuple(settings_of(model) for model in models)
    training = training or TrainingSettings()
    check_augmentation(training, data.input_shape)
    shared: dict[str, _Shared] = {}
    multiplicity, scale = data.multiplicity, data.dataset.scale
    measured: list[tuple[ModelSettings, int, int]] = []
    sites = []
    for index, model in enumerate(assign(settings, data.n_clients)):
        if (key := model.body_key) not in shared:
            shared[key] = _Shared.of(data, model, training, split, foreign)
        common = shared[key]
        own_x, own_y = common.data.client_arrays(index)
        name = data.client_names[index]
        own = torch.from_numpy(data.own_mask(index, split))
        client = Client(
            index=index,
            name=name,
            train=records_of(channels_last(torch.from_numpy(own_x)), torch.from_numpy(own_y), scale),
            alignment=common.alignment,
            classes=data.dataset.classes,
            scale=scale,
            model=model,
            training=common.training,
            rounds=rounds,
            seed=seed,
            privacy=privacy or PrivacySettings(),
            multiplicity=multiplicity,
            clients=data.n_clients,
            identity=torch.from_numpy(data.identity(index)) if identified or ledgers is not None else None,
        )
        if all(model != known for known, _, _ in measured):
            operations = probe(client.network, common.data.input_shape, client.outputs, model.name)
            measured.append((model, client.network.size, operations))
        size, operations = next((n, ops) for known, n, ops in measured if known == model)
        held_out = None
        if data.calibration_indices:
            held_x, held_y = common.data.calibration_arrays(index)
            held_out = records_of(channels_last(torch.from_numpy(held_x)), torch.from_numpy(held_y))
        view = common.data.input_view
        sites.append(Site(client, common.evaluation, own, size, operations, common.foreign, held_out, view, split))
    if not any(site.scored for site in sites):
        raise UserError(f"no client has {split} records of its own: nobody could be scored")
    return sites if ledgers is None else with_ledgers(sites, ledgers)


@dataclass(frozen=True)
class _Shared:
    """What clients share whose models see inputs alike."""

    data: FederatedData
    training: TrainingSettings
    alignment: Tensor
    evaluation: Records
    foreign: Tensor | None

    @classmethod
    def of(
        cls, data: FederatedData, model: ModelSettings, training: TrainingSettings, split: Split, foreign: Floats | None
    ) -> "_Shared":
        if model.body:
            data, training = data.on_body(model, "flip" in training.augment), on_features(training)
        x, y, _ = data.evaluation(split)
        return cls(
            data,
            training,
            channels_last(torch.from_numpy(data.alignment())),
            records_of(channels_last(torch.from_numpy(x)), torch.from_numpy(y)),
            None if foreign is None else channels_last(torch.from_numpy(data.seen(foreign))),
        )


def on_features(training: TrainingSettings) -> TrainingSettings:
    """The same for a model that stands on a body: features are not varied, but those of images that may be mirrored are
    the same for both views.
    """
    return replace(training, augment="none")


def check_augmentation(training: TrainingSettings, input_shape: tuple[int, ...]) -> None:
    if training.augment != "none" and len(input_shape) != 3:
        raise UserError(
            f"training.augment = '{training.augment}' needs images (channels, height, width), the records are "
            f"{input_shape}; set it to none"
        )


def with_ledgers(sites: Sequence[Site], folder: Path) -> list[Site]:
    """The same sites, each client with its own place for ledgers in this folder."""
    return [replace(site, client=replace(site.client, ledgers=place_of(site.client.name, folder))) for site in sites]


def place_of(name: str, folder: Path) -> Path:
    """The place of a client of this name in a folder, whatever its name and wherever it stands in the list."""
    plain = re.sub("[^A-Za-z0-9]+", "-", name)[:40].strip("-")
    return folder / f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
