"""Hands clients over to worker processes through a file, of which each worker reads only its own part."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import torch
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedbnn.federation.engines.engine import Site
from fedbnn.federation.method import Client
from fedbnn.models.regression import records_of
from fedbnn.models.training import channels_last

# Fields of a client that JSON can hold, each with its type; the others are tensors.
_TENSORS = ("train", "alignment", "identity")
_SETTINGS = {name: kind for name, kind in get_type_hints(Client).items() if name not in _TENSORS}


def write(path: Path, sites: Sequence[Site]) -> None:
    """All sites in one safetensors file; what several of them share is stored once."""
    tensors: dict[str, Tensor] = {}
    places: dict[int, str] = {}

    def shared(name: str, tensor: Tensor | None) -> str:
        """Where the tensor is in the file; empty: there is none."""
        if tensor is None:
            return ""
        if id(tensor) not in places:
            places[id(tensor)] = f"{name}.{len(places)}"
            tensors[places[id(tensor)]] = tensor
        return places[id(tensor)]

    described = []
    for site in sites:
        client = replace(site.client, ledgers=site.client.ledgers and site.client.ledgers.resolve())
        tensors[f"{client.index}.x"], tensors[f"{client.index}.y"] = client.train.x, client.train.y
        tensors[f"{client.index}.own"] = site.own
        if client.identity is not None:
            tensors[f"{client.index}.identity"] = client.identity
        settings = {name: to_jsonable_python(getattr(client, name)) for name in _SETTINGS}
        described.append(
            {
                "client": settings,
                "weights": site.weights,
                "operations": site.operations,
                "alignment": shared("alignment", client.alignment),
                "x": shared("x", site.evaluation.x),
                "y": shared("y", site.evaluation.y),
                "foreign": shared("foreign", site.foreign),
            }
        )
    contiguous = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(contiguous, path, metadata={"sites": json.dumps(described)})


def read(path: Path, clients: Collection[int]) -> list[Site]:
    """The named clients' sites."""
    sites = []
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        found: dict[str, Tensor] = {}

        def shared(place: str) -> Tensor:
            if place not in found:
                found[place] = channels_last(file.get_tensor(place))
            return found[place]

        for entry in json.loads(file.metadata()["sites"]):
            index = entry["client"]["index"]
            if index not in clients:
                continue
            settings = {
                name: TypeAdapter(kind).validate_json(json.dumps(entry["client"][name]))
                for name, kind in _SETTINGS.items()
            }
            train = records_of(channels_last(file.get_tensor(f"{index}.x")), file.get_tensor(f"{index}.y").clone())
            identity = file.get_tensor(f"{index}.identity").clone() if f"{index}.identity" in names else None
            client = Client(train=train, alignment=shared(entry["alignment"]), identity=identity, **settings)
            evaluation = records_of(shared(entry["x"]), shared(entry["y"]))
            foreign = shared(entry["foreign"]) if entry["foreign"] else None
            own = file.get_tensor(f"{index}.own").clone()
            sites.append(Site(client, evaluation, own, entry["weights"], entry["operations"], foreign))
    return sites
