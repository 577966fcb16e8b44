"""A small federation of digits as a configuration deals it, and the same one as files of the parties."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.data import FederatedData, federate, load_dataset
from fedbnn.deployment.alignment import write_alignment
from fedbnn.deployment.node import Answer, Node, Request
from fedbnn.deployment.terms import Terms, alignment_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.runs.config import Config, load_config
from tests.conftest import TINY


def small_config(method: str = "fedbnn", *changes: str) -> Config:
    return load_config(None, [*TINY, f"method={method}", *changes])


def dealt(config: Config) -> FederatedData:
    return federate(load_dataset(config.data), config.data, config.partition, config.seed)


def small_terms(method: str = "fedbnn", *changes: str) -> Terms:
    config = small_config(method, *changes)
    return Terms.of(config, dealt(config), "trial")


def write_sites(
    folder: Path, config: Config, extra: str = "", *, head: str = "", model: str = "mlp", test_records: bool = True
) -> list[Path]:
    """One folder a site, as the parties of a real deployment have them; the paths of their site.toml."""
    data = dealt(config)
    terms = Terms.of(config, data, "trial")
    files = []
    for index, name in enumerate(terms.sites):
        place = folder / f"site-{index}"
        place.mkdir(parents=True)
        (place / "terms.json").write_text(terms.to_json(), encoding="utf-8")
        write_alignment(place / "alignment.npz", alignment_of(data))
        rows = data.client_indices[index]
        arrays = {"x_train": data.dataset.x_train[rows], "y_train": data.dataset.y_train[rows]}
        if test_records:
            arrays |= {"x_test": data.dataset.x_test, "y_test": data.dataset.y_test}
        np.savez(place / "records.npz", **arrays)
        file = place / "site.toml"
        file.write_text(
            f"# one site\nname = {json.dumps(name)}\n{head}\n[data]\nsource = 'npz'  # or csv\npath = 'records.npz'\n"
            f"[model]\nname = '{model}'\n{extra}\n",
            encoding="utf-8",
        )
        files.append(file)
    return files


def site_nodes(files: Sequence[Path]) -> list[Node]:
    return [Node.from_file(file) for file in files]


def ask(node: Node, kind: str, round_number: int, message: Message, terms: Terms | None = None) -> Answer:
    return node.answer(Request(kind, round_number, (terms or node.terms).digest, message))


class HandServer:
    """A server written by hand: everybody takes part in every round, replies are taken as they come."""

    def __init__(self, terms: Terms, roster: Roster) -> None:
        self.terms, self.roster = terms, roster
        self.method = terms.chosen()
        self.state = self.method.server_init(roster)
        self.round_number = -1

    def message(self, client: int) -> Message:
        """As it comes over a wire."""
        return Message.from_bytes(self.method.broadcast(self.state, client).to_bytes())

    def step(self, nodes: Sequence[Node]) -> dict[int, Answer]:
        number = self.round_number + 1
        answers = {client: ask(node, "update", number, self.message(client)) for client, node in enumerate(nodes)}
        rng = Stream((self.terms.seed, "server", number))
        replies = {client: Message.from_bytes(answer.message.to_bytes()) for client, answer in answers.items()}
        with repeatable(rng):
            self.state = self.method.server_update(self.state, replies, self.roster, rng)
        self.round_number = number
        for client, node in enumerate(nodes):
            answers[client] = replace(
                answers[client],
                facts={**answers[client].facts, **ask(node, "evaluate", number, self.message(client)).facts},
            )
        return answers
