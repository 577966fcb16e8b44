"""Runs the client half of a method for some clients and keeps their states. Both local engines are made of this."""

import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedbnn.bayes import Prediction
from fedbnn.engines.engine import ClientFailure, Reply, Site
from fedbnn.errors import UserError
from fedbnn.evaluation import Evaluation, evaluate
from fedbnn.message import Message
from fedbnn.method import Method, State
from fedbnn.randomness import Stream


def state_file(folder: Path, client: int) -> Path:
    return folder / f"client-{client:04d}.safetensors"


class ClientHost:
    """Some clients, their states, and the method's client half."""

    def __init__(self, method: Method[Any, Any], sites: Iterable[Site], seed: int) -> None:
        self.method = method
        self.sites = {site.client.index: site for site in sites}
        self.seed = seed
        self.states: dict[int, State] = {}
        for index, site in self.sites.items():
            with self._guard(index, Stream((seed, "init", index))):
                self.states[index] = method.client_init(site.client)

    def update(self, client: int, round_number: int, message: Message) -> Reply:
        start = time.perf_counter()
        rng = Stream((self.seed, "update", round_number, client))
        with self._guard(client, rng):
            site = self.sites[client].client
            update = self.method.client_update(self.states[client], site, message, round_number, rng)
        self.states[client] = update.state
        return Reply(update.message, update.info, time.perf_counter() - start)

    def evaluate(self, client: int, round_number: int) -> Evaluation:
        site = self.sites[client]
        prediction = self.predict(client, site.evaluation.x, round_number)
        with self._guard(client, Stream((self.seed, "evaluate", round_number, client))):
            return evaluate(prediction, site.evaluation.y, site.own)

    def predict(self, client: int, x: Tensor, round_number: int) -> Prediction:
        rng = Stream((self.seed, "evaluate", round_number, client))
        with self._guard(client, rng):
            return self.method.predict(self.states[client], self.sites[client].client, x, rng)

    def save(self, folder: Path) -> None:
        for client, state in self.states.items():
            save_file(state.tensors(), state_file(folder, client))

    def load(self, folder: Path) -> None:
        for client in self.states:
            # Loaded tensors may lie unaligned in a memory map; a copy gives the same addresses modulo 64, hence
            # the same kernels and the same bits, as a run that was never stopped.
            tensors = {name: value.clone() for name, value in load_file(state_file(folder, client)).items()}
            self.states[client] = self.method.client_state(**tensors)

    @contextmanager
    def _guard(self, client: int, rng: Stream) -> Iterator[None]:
        """One thread, a seeded global generator (for a user's dropout), and errors that name the client."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(rng.child("global").seed)
                yield
        except (UserError, KeyboardInterrupt):
            raise
        except Exception as error:
            name = self.sites[client].client.name
            raise ClientFailure(f"client {client} ('{name}') failed:\n{traceback.format_exc()}") from error
        finally:
            torch.set_num_threads(threads)
