"""SCAFFOLD: without control variates plain local steps, with them the true optimum, whoever is away or lost."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.message import Message
from fedbnn.methods import FedAvg, Scaffold
from fedbnn.methods.remembered import Carried
from fedbnn.methods.scaffold import new_control
from tests.federation_sample import first_message, small_sites
from tests.plain_torch import PlainClient, cross_entropy, epoch_order, from_module, to_module
from tests.quadratic_sample import Problem, federated

RNG = Stream((0, "test"))
PROBLEM = Problem.drawn()


class Uncontrolled(Scaffold):
    """FedAvg with plain steps: its server forgets all control variates, its clients those of their own."""

    name = "uncontrolled"

    def broadcast(self, state, client):
        return Message({"weights": state.weights, "control": torch.zeros_like(state.weights)})

    def client_update(self, state, client, message, round_number, rng):
        forgotten = dataclasses.replace(state, carried=torch.zeros_like(state.carried))
        return super().client_update(forgotten, client, message, round_number, rng)


def off(weights: Tensor, truth: Tensor) -> float:
    return float((weights - truth).norm() / truth.norm())


def test_without_control_variates_a_turn_is_plain_sgd() -> None:
    site = small_sites(1, models=("mlp",), batch_size=5)[0]
    method, client = Scaffold(rate=0.1), site.client
    message = first_message(method, [site])
    assert message.arrays["control"].eq(0).all()
    found = method.client_update(method.client_init(client), client, message, 0, RNG)
    plain = PlainClient.of(client)
    to_module(message.arrays["weights"], plain.module)
    sgd = torch.optim.SGD(plain.module.parameters(), lr=0.1)
    order = epoch_order(len(plain.x), client.training.warmup_epochs, 5, RNG.child("order").torch())
    gradients = torch.zeros_like(found.state.weights)
    for index in order:
        sgd.zero_grad()
        cross_entropy(plain.module(plain.x[index]), plain.y[index]).backward()
        gradients += torch.cat([p.grad.flatten() for p in plain.module.parameters()])  # an mlp's lie as torch has them
        sgd.step()
    weights = from_module(plain.module)
    torch.testing.assert_close(found.message.arrays["weights"], weights, rtol=1e-4, atol=1e-6)
    assert (weights - message.arrays["weights"]).norm() > 0.1
    # From nothing, option II makes the control variate the mean of the gradients that were met.
    torch.testing.assert_close(found.state.carried, gradients / len(order), rtol=1e-3, atol=1e-5)


@given(st.integers(1, 9), st.integers(0, 10**6))
def test_the_new_control_variate_is_the_mean_gradient_on_the_way(steps: int, seed: int) -> None:
    """Whatever the old ones were: y = x - rate sum_k (g_k - c_i + c)."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(steps, 4, generator=generator, dtype=torch.float64)
    x, own, everybodys = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    y = x - 0.03 * (gradients - own + everybodys).sum(0)
    torch.testing.assert_close(new_control(own, everybodys, x, y, 0.03 * steps), gradients.mean(0))


def test_after_no_steps_everything_stays() -> None:
    own = torch.tensor([1.0, 2.0])
    assert torch.equal(new_control(own, torch.ones(2), torch.zeros(2), torch.zeros(2), 0.0), own)


def test_it_rests_at_the_optimum_and_plain_local_steps_do_not() -> None:
    server, states = federated(Scaffold(rate=0.1), PROBLEM, 60)
    assert off(server.weights, PROBLEM.optimum) < 1e-4
    for state, a, b in zip(states, PROBLEM.curvatures, PROBLEM.optima, strict=True):
        torch.testing.assert_close(state.carried, a @ (PROBLEM.optimum - b), rtol=1e-3, atol=1e-3)
    assert server.mean_of_all.norm() < 1e-3
    assert off(federated(Uncontrolled(rate=0.1), PROBLEM, 60)[0].weights, PROBLEM.optimum) > 0.01
    assert off(federated(FedAvg(learning_rate=0.01), PROBLEM, 200)[0].weights, PROBLEM.optimum) > 0.01


def test_with_one_step_even_plain_steps_rest_there() -> None:
    """What FedAvg misses is drift, which takes several steps: the comparison above is fair."""
    assert off(federated(Uncontrolled(rate=0.1), PROBLEM, 300, steps=1)[0].weights, PROBLEM.optimum) < 1e-4


@pytest.mark.parametrize("lost", [(), ((), (1,), (0, 2), (0, 1, 2, 3))], ids=["all arrive", "some are lost"])
@pytest.mark.parametrize("away", [(), ((0,), (1, 2), (3,), ())], ids=["all", "some away"])
def test_who_is_away_or_lost_does_no_lasting_harm(
    away: tuple[tuple[int, ...], ...], lost: tuple[tuple[int, ...], ...]
) -> None:
    server, states = federated(Scaffold(rate=0.1), PROBLEM, 200, away=away, lost=lost)
    assert off(server.weights, PROBLEM.optimum) < 1e-4
    torch.testing.assert_close(server.sent, torch.stack([state.carried for state in states]), rtol=1e-3, atol=1e-4)


def test_the_servers_step_is_the_papers() -> None:
    """x + server_rate * mean of changes over S, and c + |S| / N * mean of changes of control variates over S."""
    method, roster = Scaffold(server_rate=0.7), PROBLEM.roster
    first = {i: Message({"weights": torch.randn(3), "control": torch.randn(3)}) for i in range(4)}
    state = method.server_update(method.server_init(roster), first, roster, RNG)
    x, c = (method.broadcast(state, 0).arrays[name] for name in ("weights", "control"))
    torch.testing.assert_close(c, sum(reply.arrays["control"] for reply in first.values()) / 4)
    second = {i: Message({"weights": torch.randn(3), "control": torch.randn(3)}) for i in (1, 3)}
    after = method.broadcast(method.server_update(state, second, roster, RNG), 2).arrays
    moved = sum(reply.arrays["weights"] - x for reply in second.values()) / 2
    changed = sum(second[i].arrays["control"] - first[i].arrays["control"] for i in second) / 2
    torch.testing.assert_close(after["weights"], x + 0.7 * moved)
    torch.testing.assert_close(after["control"], c + 2 / 4 * changed)


def test_who_is_set_aside_is_forgotten() -> None:
    method, roster = Scaffold(), PROBLEM.roster
    said = {i: Message({"weights": torch.zeros(3), "control": torch.full((3,), 8.0**i)}) for i in range(3)}
    state = method.without(method.server_update(method.server_init(roster), said, roster, RNG), 2)
    assert method.broadcast(state, 0).arrays["control"].eq((1 + 8) / 4).all()


def test_a_client_scores_the_servers_model_and_its_own() -> None:
    client = PROBLEM.clients(1)[0]
    state = Carried(torch.ones(3), torch.zeros(3))
    scored = Scaffold().scored(state, client, Message({"weights": torch.full((3,), 2.0)}), RNG)
    assert {name: float(one.weights[0]) for name, one in scored.items()} == {"global": 2.0, "fine_tuned": 1.0}
