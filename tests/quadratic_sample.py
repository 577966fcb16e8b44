"""Federations whose clients' losses are quadratics, f_i(w) = 1/2 (w - b_i)^T A_i (w - b_i): every optimum is known.

The very methods run on them: only a client's network and records are others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message, check
from fedbnn.federation.method import Method, State
from fedbnn.federation.parties import Client, Roster
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Pull, Records, TrainingSettings

SIZE = 3


class Vector(nn.Module):
    """Gives its weights, whatever is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: Tensor) -> Tensor:
        return self.w


SCRATCH = FlatNetwork(Vector, 0)


@dataclass(frozen=True)
class Quadratic(Records):
    """Records whose loss is f_i: x is A_i, and y b_i. A minibatch is all of them."""

    def __len__(self) -> int:
        return 1

    def take(self, index: Tensor) -> "Quadratic":
        return self

    def loss(self, logits: Tensor) -> Tensor:
        return (logits - self.y) @ self.x @ (logits - self.y) / 2


class QuadraticClient(Client):
    @property
    def network(self) -> FlatNetwork:
        return SCRATCH

    def initial_weights(self) -> Tensor:
        return torch.zeros(SIZE)


class QuadraticRoster(Roster):
    def network(self, client: int, outputs: int | None = None) -> FlatNetwork:
        return SCRATCH

    def initial_weights(self, client: int, outputs: int | None = None) -> Tensor:
        return torch.zeros(SIZE)


@dataclass(frozen=True)
class Problem:
    """Clients with different curvatures and optima."""

    curvatures: Sequence[Tensor]
    optima: Sequence[Tensor]

    @classmethod
    def drawn(cls, clients: int = 4, seed: int = 0) -> "Problem":
        """Curvatures from about 0.5 to 2 in every direction, and optima about one apart."""
        generator = torch.Generator().manual_seed(seed)
        curvatures, optima = [], []
        for _ in range(clients):
            q, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator))
            curvatures.append(q @ torch.diag(0.5 + 1.5 * torch.rand(SIZE, generator=generator)) @ q.T)
            optima.append(torch.randn(SIZE, generator=generator))
        return cls(curvatures, optima)

    @property
    def optimum(self) -> Tensor:
        """Of the mean loss: sum A_i w = sum A_i b_i."""
        pulled = sum(a @ b for a, b in zip(self.curvatures, self.optima, strict=True))
        return torch.linalg.solve(sum(self.curvatures), pulled)

    def clients(self, steps: int) -> list[QuadraticClient]:
        training = TrainingSettings(local_epochs=steps, warmup_epochs=steps, batch_size=1)
        return [
            QuadraticClient(
                i, f"client-{i}", Quadratic(a, b), torch.zeros(0, 1), 2, ModelSettings("mlp"), training, 9, 0
            )
            for i, (a, b) in enumerate(zip(self.curvatures, self.optima, strict=True))
        ]

    @property
    def roster(self) -> QuadraticRoster:
        names = tuple(f"client-{i}" for i in range(len(self.optima)))
        return QuadraticRoster(names, 2, torch.zeros(0, 1), (ModelSettings("mlp"),) * len(names), 9, 0)


def federated(
    method: Method[Any, Any],
    problem: Problem,
    rounds: int,
    steps: int = 5,
    away: Sequence[Sequence[int]] = (),
    lost: Sequence[Sequence[int]] = (),
) -> tuple[State, list[State]]:
    """The server's state and all clients' after these rounds.

    `away` are the clients that have no turn in a round, `lost` those that have one and whose replies are lost, by
    round; after the last of them the list begins anew for `away`, and nobody is lost any more.
    """
    roster, clients = problem.roster, problem.clients(steps)
    server, states = method.server_init(roster), [method.client_init(client) for client in clients]
    for number in range(rounds):
        replies: dict[int, Message] = {}
        for i, client in enumerate(clients):
            if away and i in away[number % len(away)]:
                continue
            message = method.broadcast(server, i)
            update = method.client_update(states[i], client, message, number, Stream((0, "turn", number, i)))
            states[i] = update.state
            check(update.message, method.expected_upload(roster, i))
            if number >= len(lost) or i not in lost[number]:
                replies[i] = update.message
        server = method.server_update(server, replies, roster, Stream((0, "server", number)))
    return server, states


def minimiser(client: Client, pull: Pull | None) -> Tensor:
    """argmin f_i(w) + strength/2 ||w - centre||^2."""
    assert pull is not None
    a, b, strength = client.train.x.double(), client.train.y.double(), pull.strength
    return torch.linalg.solve(a + strength * torch.eye(SIZE).double(), a @ b + strength * pull.centre.double()).float()
