"""FedDyn: the paper's two memories, and the optimum of heterogeneous quadratics, whoever is away or lost."""

import pytest
import torch
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.methods import FedAvg, FedDyn
from fedbnn.methods.remembered import Carried
from tests.federation_sample import first_message, small_sites
from tests.quadratic_sample import SIZE, Problem, federated, minimiser

RNG = Stream((0, "test"))
PROBLEM = Problem.drawn()


class Exact(FedDyn):
    """With local minima in closed form."""

    name = "exact"

    def train(self, weights, client, passes, rng, pull=None):
        return minimiser(client, pull), 0.0


def off(weights: Tensor, truth: Tensor) -> float:
    return float((weights - truth).norm() / truth.norm())


def papers(problem: Problem, alpha: float, away: tuple[tuple[int, ...], ...], rounds: int) -> tuple[Tensor, Tensor]:
    """Algorithm 1 as it is written, with g_i and h, in double precision: x and all g_i."""
    count = len(problem.optima)
    x, h = torch.zeros(2, SIZE, dtype=torch.float64)
    g = torch.zeros(count, SIZE, dtype=torch.float64)
    for number in range(rounds):
        here = [i for i in range(count) if i not in away[number % len(away)]]
        found = {}
        for i in here:
            a, b = problem.curvatures[i].double(), problem.optima[i].double()
            found[i] = torch.linalg.solve(a + alpha * torch.eye(SIZE).double(), a @ b + g[i] + alpha * x)
            g[i] = g[i] - alpha * (found[i] - x)
        h = h - alpha / count * sum(w - x for w in found.values())
        x = sum(found.values()) / len(here) - h / alpha
    return x, g


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("away", [((),), ((0,), (1, 2), (3,))], ids=["all", "some away"])
def test_it_is_the_papers_algorithm(alpha: float, away: tuple[tuple[int, ...], ...]) -> None:
    server, states = federated(Exact(alpha=alpha), PROBLEM, 7, away=away)
    x, g = papers(PROBLEM, alpha, away, 7)
    torch.testing.assert_close(server.weights, x.float(), rtol=1e-3, atol=1e-4)
    carried = torch.stack([state.carried for state in states])
    torch.testing.assert_close(-alpha * carried, g.float(), rtol=1e-3, atol=1e-4)


def test_the_memory_is_the_gradient_where_training_stopped() -> None:
    _, states = federated(Exact(alpha=0.7), PROBLEM, 3)
    for state, a, b in zip(states, PROBLEM.curvatures, PROBLEM.optima, strict=True):
        torch.testing.assert_close(-0.7 * state.carried, a @ (state.weights - b), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.5, 2.0])
@pytest.mark.parametrize("lost", [(), ((), (1,), (0, 2), (0, 1, 2, 3))], ids=["all arrive", "some are lost"])
@pytest.mark.parametrize("away", [(), ((0,), (), (3,), ())], ids=["all", "some away"])
def test_it_rests_at_the_optimum_whoever_is_away_or_lost(
    alpha: float, away: tuple[tuple[int, ...], ...], lost: tuple[tuple[int, ...], ...]
) -> None:
    server, states = federated(Exact(alpha=alpha), PROBLEM, 300, away=away, lost=lost)
    assert off(server.weights, PROBLEM.optimum) < 1e-3
    for state in states:
        assert off(state.weights, PROBLEM.optimum) < 1e-3


def test_with_adam_it_comes_near_where_fedavg_does_not() -> None:
    settings = {"learning_rate": 0.02}
    averaged = federated(FedAvg(**settings), PROBLEM, 40, steps=100)[0].weights
    dynamic = federated(FedDyn(alpha=2.0, **settings), PROBLEM, 40, steps=100)[0].weights
    assert off(averaged, PROBLEM.optimum) > 0.05
    assert off(dynamic, PROBLEM.optimum) < 0.01


def test_with_a_vanishing_pull_a_turn_is_fedavgs() -> None:
    site = small_sites(1, models=("mlp",), batch_size=5)[0]
    message = first_message(FedDyn(), [site])
    turns = [
        method.client_update(method.client_init(site.client), site.client, message, 1, RNG).message.arrays["weights"]
        for method in (FedAvg(), FedDyn(alpha=1e-12), FedDyn(alpha=10.0))
    ]
    torch.testing.assert_close(turns[0], turns[1], rtol=1e-5, atol=1e-7)
    assert (turns[0] - turns[2]).norm() > 0.1 * (turns[0] - message.arrays["weights"]).norm()


def test_the_first_turn_has_no_memory_and_the_next_one_that_of_the_first() -> None:
    method, client = Exact(alpha=1.0), PROBLEM.clients(1)[0]
    x = torch.tensor([1.0, 2.0, 3.0])
    first = method.client_update(method.client_init(client), client, Message({"weights": x}), 0, RNG)
    torch.testing.assert_close(first.state.carried, first.state.weights - x)
    second = method.client_update(first.state, client, Message({"weights": x}), 1, RNG)
    torch.testing.assert_close(second.state.carried, first.state.carried + second.state.weights - x)
    assert isinstance(second.state, Carried)
    assert second.message.arrays["drift"] is second.state.carried
