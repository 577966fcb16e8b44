"""FedSplit: Peaceman-Rachford splitting by operators, and the optimum of heterogeneous quadratics, by inexact steps."""

import pytest
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.methods import FedSplit
from fedbnn.runs.config import load_config
from tests.quadratic_sample import SIZE, Problem, federated, minimiser

RNG = Stream((0, "test"))
PROBLEM = Problem.drawn()


class Exact(FedSplit):
    """With proximal points in closed form."""

    name = "exact"

    def proximal_point(self, x, pull, client, round_number, rng):
        return minimiser(client, pull), 0.0


class Averaged(FedSplit):
    """What is left without reflections: averages of proximal points."""

    name = "averaged"

    def client_update(self, state, client, message, round_number, rng):
        update = super().client_update(Exact().client_init(client), client, message, round_number, rng)
        return update._replace(message=Message({"weights": update.state.weights}))


def off(weights: Tensor, truth: Tensor) -> float:
    return float((weights - truth).norm() / truth.norm())


@pytest.mark.parametrize("strength", [0.5, 1.0, 3.0])
def test_with_exact_steps_it_is_peaceman_rachford_splitting(strength: float) -> None:
    """z <- R_F R_C z in the product space: C where all blocks are equal, R = 2 prox - identity."""
    server, states = federated(Exact(strength=strength, rate=0.1), PROBLEM, 6)
    z = torch.zeros(4, SIZE, dtype=torch.float64)
    for _ in range(6):
        reflected = 2 * z.mean(0) - z
        proximal = torch.stack(
            [
                torch.linalg.solve(a.double() + strength * torch.eye(SIZE).double(), (a @ b).double() + strength * v)
                for a, b, v in zip(PROBLEM.curvatures, PROBLEM.optima, reflected, strict=True)
            ]
        )
        z = 2 * proximal - reflected
    torch.testing.assert_close(torch.stack([state.z for state in states]), z.float(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(server.weights, z.mean(0).float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("steps", [2, 5, 50])
def test_it_rests_at_the_optimum_with_any_number_of_gradient_steps(steps: int) -> None:
    server, states = federated(FedSplit(strength=1.0, rate=0.2), PROBLEM, 150, steps=steps)
    assert off(server.weights, PROBLEM.optimum) < 1e-3
    for state, a, b in zip(states, PROBLEM.curvatures, PROBLEM.optima, strict=True):
        torch.testing.assert_close(server.weights - state.z, a @ (server.weights - b), rtol=0.01, atol=0.01)
    without = federated(Averaged(strength=1.0, rate=0.2), PROBLEM, 150, steps=steps)[0].weights
    assert off(without, PROBLEM.optimum) > 0.005


@pytest.mark.parametrize("lost", [(), ((), (1,), (0, 2), (0, 1, 2, 3))], ids=["all arrive", "some are lost"])
@pytest.mark.parametrize("away", [(), ((0,), (1, 2), (3,), ())], ids=["all", "some away"])
def test_who_is_away_or_lost_does_no_lasting_harm(
    away: tuple[tuple[int, ...], ...], lost: tuple[tuple[int, ...], ...]
) -> None:
    server, _ = federated(FedSplit(strength=1.0, rate=0.2), PROBLEM, 300, away=away, lost=lost)
    assert off(server.weights, PROBLEM.optimum) < 1e-3


def test_a_client_begins_at_the_first_x_that_it_is_sent() -> None:
    method, client = Exact(), PROBLEM.clients(1)[0]
    assert method.client_init(client).z is None
    x = torch.tensor([1.0, 2.0, 3.0])
    first = method.client_update(method.client_init(client), client, Message({"weights": x}), 4, RNG)
    torch.testing.assert_close(first.message.arrays["weights"], 2 * first.state.weights - x)
    torch.testing.assert_close(first.state.z, first.message.arrays["weights"])


def test_who_is_set_aside_does_not_count() -> None:
    method, roster = FedSplit(), PROBLEM.roster
    said = {i: Message({"weights": torch.full((3,), 8.0**i)}) for i in range(3)}
    state = method.server_update(method.server_init(roster), said, roster, RNG)
    assert state.weights.eq((1 + 8 + 64) / 3).all()
    state = method.server_update(method.without(state, 2), {0: said[0]}, roster, RNG)
    assert state.weights.eq((1 + 8) / 2).all()


def test_a_pull_that_overshoots_is_refused() -> None:
    with pytest.raises(UserError, match=r"strength \* rate must be below 1, it is 2"):
        load_config(None, ["methods.fedsplit.strength=20.0", "methods.fedsplit.rate=0.1"])
