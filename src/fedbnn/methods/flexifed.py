"""FlexiFed (K. Wang, He, Chen, Chen, Huang, Jin, Yang 2023): networks share the layers with which they begin alike.

Layers are compared from the input on, by their kind, settings and shapes. Let c_ij be how many weights the networks of
clients i and j have in common before the first layer that differs. Weight k of client i becomes

    w_ik <- sum_j n_j w_jk / sum_j n_j    over those j who replied with k < r_ij,

where the reach r_ij is up to `strategy`, in the paper's words

- max         r_ij = c_ij                                                           (Max-Common)
- clustered   the whole network if i and j have one architecture, otherwise as basic (Clustered-Common)
- basic       the least c_ij of all pairs: only what all have in common             (Basic-Common)

What a client shares with nobody stays at home. Clients train what they received under what they kept, on their own
records. Scored are the personal model (the server's newest layers under the client's own rest) and the client's after
its local training (fine-tuned). Where all run one architecture it is FedAvg. Unlike the paper, clients count by their
records, layers that are shared begin alike, and clients use Adam, begun anew in each round.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message, Numbers, UploadSpec, records_form
from fedbnn.federation.method import Method, Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import count, shares
from fedbnn.methods.feddf import Students
from fedbnn.methods.point import Point, PointModel, PointTraining
from fedbnn.models.network import FlatNetwork

Layers = Sequence[tuple[str, int]]


def layers_of(network: FlatNetwork, inputs: str = "") -> Layers:
    """What each layer is, from the input on, and how many weights it has; `inputs` tells what the first one sees."""
    found = [(inputs, 0)]
    for place, layer in network.module.named_modules():
        if isinstance(layer, nn.Sequential):
            continue  # how layers are bundled makes no difference
        own = dict(layer.named_parameters(place, recurse=False))
        kind = f"{type(layer).__name__}({layer.extra_repr()})" + "".join(f" {tuple(p.shape)}" for p in own.values())
        spans = [network.spans[name] for name in own if name in network.spans]
        found.append((kind, sum(span.stop - span.start for span in spans)))
    return found


def common(one: Layers, other: Layers) -> int:
    """c_ij: the weights of the layers before the first that differs; they are the first ones of either vector."""
    total = 0
    for (kind, weights), (another, _) in zip(one, other, strict=False):
        if kind != another:
            break
        total += weights
    return total


def joined(old: Tensor, reach: Mapping[int, int], weights: Mapping[int, Tensor], part: Mapping[int, float]) -> Tensor:
    """One network's shared layers: of every weight the mean over those j with j's reach beyond it, by their parts.

    What nobody reaches stays as it was.
    """
    new, start = old.clone(), 0
    for stop in sorted({min(reach[j], len(old)) for j in part}):
        members = [j for j in part if reach[j] >= stop]
        total = sum(part[j] for j in members)
        if stop > start and total > 0:
            piece = new[start:stop].zero_()
            for j in members:
                piece.add_(weights[j][start:stop], alpha=part[j] / total)
        start = stop
    return new


@settings
class FlexiFed(PointModel, PointTraining, Method[Point, Students]):
    """Layers are averaged among the clients whose networks begin alike."""

    name = "flexifed"
    summary = "the layers with which networks of different architectures begin alike are averaged"
    server_state = Students
    regression = True

    strategy: Literal["max", "clustered", "basic"] = Field(
        default="max",
        description="which layers are averaged: max (each among all who have it and all before it in common), basic "
        "(only those that all clients have in common) or clustered (basic, and the rest among equal architectures)",
    )

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        start, shared = _under(message, state), message.get("weights")
        weights, loss = self.train(start, client, client.training.passes(round_number), rng)
        arrays = {"records": count(client)}
        if shared is not None:
            arrays["weights"] = weights[: len(shared)].clone()
        return Update(Point(weights), Message(arrays), {"loss": loss, "drift": float((weights - start).norm())})

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"personal": Point(_under(message, state)), "fine_tuned": state}

    def reach(self, roster: Roster) -> list[list[int]]:
        """r_ij of all clients."""
        layers = [layers_of(roster.network(i), model.body_key) for i, model in enumerate(roster.models)]
        kinds = [model.architecture for model in roster.models]
        firsts = {kind: kinds.index(kind) for kind in kinds}
        between = {(a, b): common(layers[i], layers[j]) for a, i in firsts.items() for b, j in firsts.items()}
        if self.strategy != "max":
            least = min((between[pair] for pair in combinations(firsts, 2)), default=None)
            for a, b in between:
                if least is not None and (a != b or self.strategy == "basic"):
                    between[a, b] = least
        return [[between[a, b] for b in kinds] for a in kinds]

    def server_init(self, roster: Roster) -> Students:
        reach, kinds = self.reach(roster), [model.architecture for model in roster.models]
        lengths = _shared(reach)
        if not any(lengths):
            raise UserError(
                f"method '{self.name}' averages the layers with which networks begin alike, but no two clients' do "
                f"({', '.join(dict.fromkeys(kinds))}; strategy = '{self.strategy}'): give them models of one family, "
                "e.g. cnn2 and cnn3, or choose methods that need nothing in common (fedbnn, fedmd, feddf)"
            )
        starts: dict[str, int] = {}
        parts: list[Tensor] = []
        initial = {kind: roster.initial_weights(kinds.index(kind)) for kind in dict.fromkeys(kinds)}
        for i, kind in enumerate(kinds):
            if kind in starts:
                continue
            starts[kind] = sum(len(part) for part in parts)
            part = initial[kind][: lengths[i]].clone()
            for j in reversed(range(i)):  # layers that are shared begin as the first client's who has them
                both = min(reach[i][j], lengths[i])
                part[:both] = initial[kinds[j]][:both]
            parts.append(part)
        spans = [(starts[kind], starts[kind] + length) for kind, length in zip(kinds, lengths, strict=True)]
        return Students(torch.cat(parts), torch.tensor(spans))

    def expected_upload(self, roster: Roster, client: int) -> UploadSpec:
        length = _shared(self.reach(roster))[client]
        return {"records": records_form()} | ({"weights": Numbers((length,))} if length else {})

    def server_update(self, state: Students, replies: Mapping[int, Message], roster: Roster, rng: Stream) -> Students:
        weights = {i: reply.arrays["weights"] for i, reply in replies.items() if "weights" in reply.arrays}
        part, reach = shares({i: replies[i] for i in weights}), self.reach(roster)
        new = Students(state.weights.clone(), state.spans)
        for i, span in enumerate(state.spans.tolist()):
            if span not in state.spans[:i].tolist():  # once for each architecture
                new.of(i).copy_(joined(state.of(i), dict(enumerate(reach[i])), weights, part))
        return new

    def broadcast(self, state: Students, client: int) -> Message:
        shared = state.of(client)
        return Message({"weights": shared}) if len(shared) else Message()


def _shared(reach: Sequence[Sequence[int]]) -> list[int]:
    """How many weights each client has in common with anybody else; all of them where there is nobody else."""
    return [max(row[:i] + row[i + 1 :] or row) for i, row in enumerate(map(list, reach))]


def _under(message: Message, state: Point) -> Tensor:
    """The shared layers that were received under the client's own."""
    shared = message.get("weights")
    return state.weights if shared is None else torch.cat([shared, state.weights[len(shared) :]])
