"""FedPD: the paper's algorithm, FedDyn's where everybody is there, and the optimum of heterogeneous quadratics."""

import pytest
import torch
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.methods import FedAvg, FedDyn, FedPD
from tests.federation_sample import first_message, small_sites
from tests.quadratic_sample import SIZE, Problem, federated, minimiser

RNG = Stream((0, "test"))
PROBLEM = Problem.drawn()


class Exact(FedPD):
    """With local minima in closed form."""

    name = "exact"

    def train(self, weights, client, passes, rng, pull=None):
        return minimiser(client, pull), 0.0


class ExactDyn(FedDyn):
    name = "exact_dyn"

    def train(self, weights, client, passes, rng, pull=None):
        return minimiser(client, pull), 0.0


def off(weights: Tensor, truth: Tensor) -> float:
    return float((weights - truth).norm() / truth.norm())


def papers(problem: Problem, eta: float, rounds: int) -> tuple[Tensor, Tensor]:
    """Algorithm 1 with exact minima and an exchange every round, in double precision: x_0 and all lambda_i."""
    count = len(problem.optima)
    x0, duals = torch.zeros(SIZE).double(), torch.zeros(count, SIZE).double()
    for _ in range(rounds):
        ups = []
        for i in range(count):
            a, b = problem.curvatures[i].double(), problem.optima[i].double()
            # A (x - b) + lambda + (x - x0) / eta = 0
            x = torch.linalg.solve(a + torch.eye(SIZE).double() / eta, a @ b - duals[i] + x0 / eta)
            duals[i] += (x - x0) / eta
            ups.append(x + eta * duals[i])
        x0 = torch.stack(ups).mean(0)
    return x0, duals


@pytest.mark.parametrize("eta", [0.3, 1.0, 4.0])
def test_it_is_the_papers_algorithm(eta: float) -> None:
    server, states = federated(Exact(eta=eta), PROBLEM, 7)
    x0, duals = papers(PROBLEM, eta, 7)
    torch.testing.assert_close(server.weights, x0.float(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(torch.stack([s.carried for s in states]) / eta, duals.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("eta", [0.5, 2.0])
@pytest.mark.parametrize("lost", [(), ((), (1,), (0, 2), (0, 1, 2, 3))], ids=["all arrive", "some are lost"])
@pytest.mark.parametrize("away", [(), ((0,), (1, 2), (3,), ())], ids=["all", "some away"])
def test_it_rests_at_the_optimum_whoever_is_away_or_lost(
    eta: float, away: tuple[tuple[int, ...], ...], lost: tuple[tuple[int, ...], ...]
) -> None:
    server, states = federated(Exact(eta=eta), PROBLEM, 400, away=away, lost=lost)
    assert off(server.weights, PROBLEM.optimum) < 1e-3
    for state, a, b in zip(states, PROBLEM.curvatures, PROBLEM.optima, strict=True):
        assert off(state.weights, PROBLEM.optimum) < 1e-3
        torch.testing.assert_close(-state.carried / eta, a @ (PROBLEM.optimum - b), rtol=0.01, atol=0.01)


def test_with_adam_it_comes_near_where_fedavg_does_not() -> None:
    averaged = federated(FedAvg(learning_rate=0.02), PROBLEM, 40, steps=100)[0].weights
    joined = federated(FedPD(learning_rate=0.02, eta=0.5), PROBLEM, 40, steps=100)[0].weights
    assert off(averaged, PROBLEM.optimum) > 0.05
    assert off(joined, PROBLEM.optimum) < 0.01


def test_with_everybody_in_every_round_it_is_feddyn() -> None:
    """With alpha = 1 / eta; and it is not where somebody is away."""
    one, other = (federated(method, PROBLEM, 5)[0] for method in (Exact(eta=0.5), ExactDyn(alpha=2.0)))
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-4, atol=1e-5)
    away = ((), (0,), (1, 2))
    one, other = (federated(method, PROBLEM, 5, away=away)[0] for method in (Exact(eta=0.5), ExactDyn(alpha=2.0)))
    assert (one.weights - other.weights).norm() > 1e-3


def test_with_a_vanishing_pull_a_turn_is_fedavgs() -> None:
    site = small_sites(1, models=("mlp",), batch_size=5)[0]
    message = first_message(FedPD(), [site])
    turns = [
        method.client_update(method.client_init(site.client), site.client, message, 1, RNG).state.weights
        for method in (FedAvg(), FedPD(eta=1e12), FedPD(eta=0.1))
    ]
    torch.testing.assert_close(turns[0], turns[1], rtol=1e-5, atol=1e-7)
    assert (turns[0] - turns[2]).norm() > 0.1 * (turns[0] - message.arrays["weights"]).norm()


def test_who_is_away_counts_with_what_it_sent_last_and_who_is_set_aside_not_at_all() -> None:
    method, roster = FedPD(), PROBLEM.roster
    said = {i: Message({"weights": torch.full((3,), 8.0**i)}) for i in range(3)}
    state = method.server_update(method.server_init(roster), said, roster, RNG)
    assert state.weights.eq((1 + 8 + 64) / 3).all()  # the fourth has never been heard
    state = method.server_update(state, {0: Message({"weights": torch.full((3,), 4.0)})}, roster, RNG)
    torch.testing.assert_close(state.weights, torch.full((3,), (4 + 8 + 64) / 3))
    state = method.server_update(method.without(state, 2), {0: said[0]}, roster, RNG)
    torch.testing.assert_close(state.weights, torch.full((3,), (1 + 8) / 2))
