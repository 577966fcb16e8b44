"""Hands clients over to worker processes through a file, of which each worker reads only its own part."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedbnn.federation.engines.engine import Site
from fedbnn.federation.method import Client
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import Records, TrainingSettings, channels_last
from fedbnn.privacy import Budget, PrivacySettings


def write(path: Path, sites: Sequence[Site]) -> None:
    """All sites in one safetensors file; alignment set, evaluation records and foreign inputs are stored once."""
    first = sites[0]
    tensors: dict[str, Tensor] = {
        "alignment": first.client.alignment,
        "evaluation.x": first.evaluation.x,
        "evaluation.y": first.evaluation.y,
    }
    if first.foreign is not None:
        tensors["foreign"] = first.foreign
    described: list[dict[str, Any]] = []
    for site in sites:
        client = site.client
        tensors[f"{client.index}.x"], tensors[f"{client.index}.y"] = client.train.x, client.train.y
        tensors[f"{client.index}.own"] = site.own
        described.append(
            {
                "index": client.index,
                "name": client.name,
                "classes": client.classes,
                "rounds": client.rounds,
                "seed": client.seed,
                "weights": site.weights,
                "operations": site.operations,
                "model": asdict(client.model),
                "training": asdict(client.training),
                "privacy": asdict(client.privacy),
                "multiplicity": client.multiplicity,
                "fingerprint": client.fingerprint,
                "ledgers": None if client.ledgers is None else str(client.ledgers.resolve()),
                "cap": None if client.cap is None else client.cap.to_dict(),
            }
        )
    plain = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(plain, path, metadata={"clients": json.dumps(described)})


def read(path: Path, clients: Collection[int]) -> list[Site]:
    """The named clients' sites."""
    with safe_open(path, framework="pt") as file:
        alignment = channels_last(file.get_tensor("alignment"))
        evaluation = Records(channels_last(file.get_tensor("evaluation.x")), file.get_tensor("evaluation.y"))
        foreign = channels_last(file.get_tensor("foreign")) if "foreign" in set(file.keys()) else None
        described = [entry for entry in json.loads(file.metadata()["clients"]) if entry["index"] in clients]
        sites = []
        for entry in described:
            index = entry["index"]
            client = Client(
                index=index,
                name=entry["name"],
                train=Records(channels_last(file.get_tensor(f"{index}.x")), file.get_tensor(f"{index}.y").clone()),
                alignment=alignment,
                classes=entry["classes"],
                model=TypeAdapter(ModelSettings).validate_json(json.dumps(entry["model"])),
                training=TypeAdapter(TrainingSettings).validate_json(json.dumps(entry["training"])),
                rounds=entry["rounds"],
                seed=entry["seed"],
                privacy=TypeAdapter(PrivacySettings).validate_json(json.dumps(entry["privacy"])),
                multiplicity=entry["multiplicity"],
                fingerprint=entry["fingerprint"],
                ledgers=None if entry["ledgers"] is None else Path(entry["ledgers"]),
                cap=None if entry["cap"] is None else Budget(**entry["cap"]),
            )
            own = file.get_tensor(f"{index}.own").clone()
            sites.append(Site(client, evaluation, own, entry["weights"], entry["operations"], foreign))
    return sites
