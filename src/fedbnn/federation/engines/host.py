"""Runs the client half of a method for some clients and keeps their states. Both local engines are made of this.

This is where devices are crossed: sites, messages, predictions and files are on the CPU, and clients with their states
on the host's device.
"""

import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbnn.base.devices import CPU
from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.engines.engine import ClientFailure, Reply, Site
from fedbnn.federation.engines.states import ClientStates, read_state, state_file
from fedbnn.federation.evaluation import Scored, evaluate, with_detection
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method, Variant
from fedbnn.federation.scored import answered, predicted, scored_models
from fedbnn.models.label_prior import Known
from fedbnn.models.regression import Answer


class Placed(Mapping[int, Site]):
    """The sites with all that clients compute with on the device; what several of them share is moved once."""

    def __init__(self, sites: Mapping[int, Site], device: torch.device) -> None:
        self._sites, self._device = sites, device
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}  # by identity, which lasts as long as what it is of

    def __iter__(self) -> Iterator[int]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    def __getitem__(self, client: int) -> Site:
        site = self._sites[client]
        if self._device == CPU:
            return site
        held = site.client
        moved = replace(held, train=held.train.to(self._device), alignment=self._move(held.alignment))
        foreign = None if site.foreign is None else self._move(site.foreign)
        scored = replace(site.evaluation, x=self._move(site.evaluation.x))
        return replace(site, client=moved, evaluation=scored, foreign=foreign)

    def _move(self, shared: Tensor) -> Tensor:
        if id(shared) not in self._moved:
            self._moved[id(shared)] = shared, shared.to(self._device)
        return self._moved[id(shared)][1]


class ClientHost:
    """Some clients, their states, and the method's client half.

    Who has no state among those that are given begins with its first. With `clients` it begins with these alone, and
    others of the sites may come.
    """

    def __init__(
        self,
        method: Method[Any, Any],
        sites: Mapping[int, Site],
        seed: int,
        device: torch.device = CPU,
        states: ClientStates | None = None,
        clients: Collection[int] | None = None,
    ) -> None:
        self.method = method
        self.sites = Placed(sites, device)
        self.seed = seed
        self.device = device
        self.states = ClientStates(method.client_state, device=device) if states is None else states
        for index in self.sites if clients is None else clients:
            if index in self.states:
                continue
            with self._guard(index, Stream((seed, "init", index), device)):
                self.states[index] = method.client_init(self.sites[index].client)

    def update(self, client: int, round_number: int, message: Message, keep: bool = True) -> Reply:
        """One turn; unless the new state is kept, the client goes on from the one before."""
        start = time.perf_counter()
        rng = Stream((self.seed, "update", round_number, client), self.device)
        with self._guard(client, rng):
            site = self.sites[client].client
            received = message.to(self.device)
            update = self.method.client_update(self.states[client], site, received, round_number, rng)
        if keep:
            self.states[client] = update.state
        return Reply(update.message.to(CPU), update.info, time.perf_counter() - start)

    def evaluate(self, client: int, round_number: int, message: Message, foreign: bool = False) -> dict[str, Scored]:
        site, rng = self.sites[client], Stream((self.seed, "evaluate", round_number, client), self.device)
        with self._guard(client, rng):
            models = scored_models(self.method, self.states[client], site.client, message.to(self.device), rng)
            predictions = predicted(self.method, models, site.client, site.evaluation.x, rng)
            self._check_finite(client, round_number, predictions)
            evaluations: dict[str, Scored] = {
                variant: evaluate(prediction, site.evaluation.y, site.own)
                for variant, prediction in predictions.items()
            }
            if foreign and site.foreign is not None:
                # The same stream gives the same weight draws as above: what differs are the inputs alone.
                for variant, unknown in predicted(self.method, models, site.client, site.foreign, rng).items():
                    evaluations[variant] = with_detection(evaluations[variant], predictions[variant], site.own, unknown)
            return evaluations

    def predict(
        self,
        client: int,
        x: Tensor,
        round_number: int,
        message: Message,
        variant: str | None,
        prior: Known | Sequence[float] | None = None,
    ) -> Answer:
        site, rng = self.sites[client].client, Stream((self.seed, "evaluate", round_number, client), self.device)
        with self._guard(client, rng):
            models = scored_models(self.method, self.states[client], site, message.to(self.device), rng)
            chosen = next((name for name in models if variant in (None, name)), None)
            if chosen is None:
                raise UserError(f"variant '{variant}': method '{self.method.name}' scores {', '.join(models)}")
            raw = self.method.predict(models[chosen], site, x.to(self.device), rng).to(CPU)
            return answered(self.method, raw, chosen, site, prior)

    def try_out(self, client: int, round_number: int, message: Message) -> None:
        """Fail as predictions after this message would; tried on an input that is nobody's."""
        site, rng = self.sites[client].client, Stream((self.seed, "evaluate", round_number, client), self.device)
        nothing = torch.zeros_like(site.train.x[:1])
        with self._guard(client, rng):
            models = scored_models(self.method, self.states[client], site, message.to(self.device), rng)
            self._check_finite(client, round_number, predicted(self.method, models, site, nothing, rng))

    def save(self, folder: Path) -> None:
        self.states.save(folder)

    def load(self, folder: Path) -> None:
        for client in self.states:
            state = self.method.client_state.from_tensors(read_state(state_file(folder, client)))
            self.states[client] = state.to(self.device)

    def _check_finite(self, client: int, round_number: int, predictions: Mapping[Variant, Answer]) -> None:
        """Tell the commonest of all mistakes, steps that are too long, as what it is."""
        for variant, prediction in predictions.items():
            if not prediction.finite:
                raise UserError(
                    f"client {client} ('{self.sites[client].client.name}'): after round {round_number} its {variant} "
                    f"model predicts values that are not finite: training has diverged; shorten the steps (the rates "
                    f"under methods.{self.method.name}) and start again"
                )

    @contextmanager
    def _guard(self, client: int, rng: Stream) -> Iterator[None]:
        """Repeatable, and with errors that name the client."""
        try:
            with repeatable(rng):
                yield
        except (UserError, KeyboardInterrupt):
            raise
        except Exception as error:
            name = self.sites[client].client.name
            raise ClientFailure(f"client {client} ('{name}') failed:\n{traceback.format_exc()}") from error
