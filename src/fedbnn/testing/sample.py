"""A federation that is small enough to check anything on, and its first rounds in slow motion."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.federation.engines import Site, by_index
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, State
from fedbnn.federation.server import Server
from fedbnn.federation.sites import make_sites
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.training import TrainingSettings

SEED = 3
ROUNDS = 2  # of whole runs, after the warm-up
MODELS = (
    ModelSettings("mlp", options={"hidden": [8]}),
    ModelSettings("cnn2", options={"channels": [2, 4], "hidden": 4}),
)
NORMALISED = ModelSettings("transformer", options={"width": 8, "heads": 2})


def sample_sites(method: Method[Any, Any]) -> list[Site]:
    """Three clients with twelve digits each; of two architectures, or of one if the method refuses to mix them.

    Of one with normalisation layers if it refuses that one, too.
    """
    data = DataSettings(alignment=20)
    partition = PartitionSettings(clients=3, classes_per_client=3, records_per_class=4)
    dealt = federate(load_dataset(data), data, partition, SEED)
    training = TrainingSettings(local_epochs=1, warmup_epochs=2, batch_size=8)
    for models in (MODELS, MODELS[1:]):
        sites = make_sites(dealt, models, training, rounds=ROUNDS, seed=SEED)
        try:
            method.server_init(roster_of(sites))
        except UserError:
            continue
        return sites
    return make_sites(dealt, [NORMALISED], training, rounds=ROUNDS, seed=SEED)


@dataclass(frozen=True)
class Moment:
    """One round, all clients taking part: what the halves were given, and what they gave."""

    number: int
    server: State  # before it
    messages: Mapping[int, Message]
    states: Mapping[int, State]  # before the turns
    after: Mapping[int, State]
    infos: Mapping[int, Mapping[str, float]]
    replies: Mapping[int, Message]


def moments(method: Method[Any, Any], sites: Sequence[Site]) -> Iterator[Moment]:
    """The warm-up and the first round."""
    host = ClientHost(method, by_index(sites), SEED)
    server = Server(method, roster_of(sites), seed=SEED)
    for number in range(2):
        state, before = server.state, dict(host.states)
        messages = server.messages(range(len(sites)))
        turns = {client: host.update(client, number, message) for client, message in messages.items()}
        infos = {client: turn.info for client, turn in turns.items()}
        replies = {client: turn.message for client, turn in turns.items()}
        yield Moment(number, state, messages, before, dict(host.states), infos, replies)
        server.take_in(replies)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether both hold the same numbers, to the last bit, under the same names."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
