"""Hands clients over to worker processes through a folder: a file a client, and one for what several share.

A worker reads a client when it is asked, and keeps a bounded number: of thousands, few are in memory at once.
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import torch
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from safetensors import safe_open
from torch import Tensor

from fedbnn.base.tensors import save_tensors
from fedbnn.federation.engines.engine import Site
from fedbnn.federation.engines.states import IN_MEMORY, state_file
from fedbnn.federation.parties import Client
from fedbnn.models.regression import records_of
from fedbnn.models.training import channels_last

# Fields of a client that JSON can hold, each with its type; the others are tensors.
_TENSORS = ("train", "alignment", "identity")
_SETTINGS = {name: TypeAdapter(kind) for name, kind in get_type_hints(Client).items() if name not in _TENSORS}
_SHARED = "shared.safetensors"


def write(folder: Path, sites: Sequence[Site]) -> None:
    """All sites into a new folder; what several of them share is stored once."""
    folder.mkdir(parents=True)
    tensors: dict[str, Tensor] = {}
    places: dict[int, str] = {}

    def shared(name: str, tensor: Tensor | None) -> str:
        """Where the tensor is in the shared file; empty: there is none."""
        if tensor is None:
            return ""
        if id(tensor) not in places:
            places[id(tensor)] = f"{name}.{len(places)}"
            tensors[places[id(tensor)]] = _plain(tensor)
        return places[id(tensor)]

    for site in sites:
        client = replace(site.client, ledgers=site.client.ledgers and site.client.ledgers.resolve())
        own = {"x": client.train.x, "y": client.train.y, "own": site.own}
        if client.identity is not None:
            own["identity"] = client.identity
        described = {
            "client": {name: to_jsonable_python(getattr(client, name)) for name in _SETTINGS},
            "weights": site.weights,
            "operations": site.operations,
            "alignment": shared("alignment", client.alignment),
            "x": shared("x", site.evaluation.x),
            "y": shared("y", site.evaluation.y),
            "foreign": shared("foreign", site.foreign),
        }
        plain = {name: _plain(tensor) for name, tensor in own.items()}
        save_tensors(plain, state_file(folder, client.index), {"site": json.dumps(described)})
    save_tensors(tensors, folder / _SHARED)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


class Handed(Mapping[int, Site]):
    """The sites of these clients, read from the folder as they are asked for; the last `most` are kept."""

    def __init__(self, folder: Path, clients: Collection[int], most: int = IN_MEMORY) -> None:
        self._folder, self._clients, self._most = folder, sorted(clients), most
        self._shared: dict[str, Tensor] = {}
        self._kept: OrderedDict[int, Site] = OrderedDict()  # the one used longest ago first

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, client: int) -> Site:
        if client not in self._kept:
            self._kept[client] = self._read(client)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(client)
        return self._kept[client]

    def _read(self, client: int) -> Site:
        if client not in self._clients:
            raise KeyError(client)
        with safe_open(state_file(self._folder, client), framework="pt") as file:
            entry = json.loads(file.metadata()["site"])
            tensors = {name: channels_last(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
        settings = {name: kind.validate_json(json.dumps(entry["client"][name])) for name, kind in _SETTINGS.items()}
        return Site(
            Client(
                train=records_of(tensors["x"], tensors["y"]),
                alignment=self._of_all(entry["alignment"]),
                identity=tensors.get("identity"),
                **settings,
            ),
            records_of(self._of_all(entry["x"]), self._of_all(entry["y"])),
            tensors["own"],
            entry["weights"],
            entry["operations"],
            self._of_all(entry["foreign"]) if entry["foreign"] else None,
        )

    def _of_all(self, place: str) -> Tensor:
        """What several clients share is one tensor for all of them."""
        if place not in self._shared:
            with safe_open(self._folder / _SHARED, framework="pt") as file:
                self._shared[place] = channels_last(file.get_tensor(place))
        return self._shared[place]
