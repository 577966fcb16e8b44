"""MOCHA: the best relations, the optimum of all tasks together on quadratics, and training alone as its limit."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream, repeatable
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.methods import MOCHA, Local
from fedbnn.methods.mocha import Related, relations
from fedbnn.methods.point import Point
from fedbnn.models.training import Pull
from fedbnn.runs.config import load_config
from tests.federation_sample import first_message, small_sites, unequal
from tests.quadratic_sample import SIZE, Problem, federated, minimiser

RNG = Stream((0, "mocha"))
SITES = unequal(small_sites(3, models=("mlp",), batch_size=5), (12, 7, 3))
PROBLEM = Problem.drawn()


def changes_of(seed: int, tasks: int = 4, size: int = 7) -> Tensor:
    return torch.randn(tasks, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def penalty(changes: Tensor, omega: Tensor) -> float:
    """tr(D Omega^-1 D^T), the columns of D being the tasks."""
    return float(torch.trace(torch.linalg.solve(omega, changes @ changes.T)))


@given(st.integers(0, 10**6))
def test_relations_are_the_best_of_trace_one(seed: int) -> None:
    """Against the closed form, and against any other such matrix: the penalty is least, (tr (D^T D)^(1/2))^2."""
    changes = changes_of(seed)
    omega = relations(changes, 0.0)
    roots = torch.linalg.svdvals(changes)
    assert float(omega.trace()) == pytest.approx(1.0)
    torch.testing.assert_close(omega @ omega * roots.sum() ** 2, changes @ changes.T, rtol=1e-6, atol=1e-8)
    least = penalty(changes, omega)
    assert least == pytest.approx(float(roots.sum()) ** 2, rel=1e-6)
    other = changes_of(seed + 1, 4, 5)
    other = other @ other.T
    assert penalty(changes, other / other.trace()) >= least * (1 - 1e-9)


@given(st.integers(0, 10**6), st.sampled_from([1e-4, 0.01, 1.0]), st.booleans())
def test_a_ridge_bounds_what_holds_a_client(seed: int, ridge: float, same: bool) -> None:
    """However alike tasks are: P is at most ((1 + ridge) / ridge)^(1/2)."""
    changes = changes_of(seed)
    if same:
        changes = changes[:1].expand(4, -1)
    p = torch.linalg.inv(relations(changes, ridge)) / 4
    largest = float(torch.linalg.eigvalsh(p).max())
    assert largest <= ((1 + ridge) / ridge) ** 0.5 * (1 + 1e-9)


def test_unrelated_tasks_of_one_size_and_tasks_that_have_not_moved_are_related_to_themselves_alone() -> None:
    for changes in (torch.eye(4, 7), torch.zeros(4, 7)):
        torch.testing.assert_close(relations(changes, 0.01), torch.eye(4, dtype=torch.float64) / 4)


def test_relations_tell_who_is_alike() -> None:
    one, other = changes_of(0, 2, 50)
    omega = relations(torch.stack([one, one + 0.1 * other, other, -one]), 0.01)
    assert omega[0, 1] > 5 * abs(omega[0, 2])
    assert omega[0, 3] < 0


class Exact(MOCHA):
    """Every client goes to the minimum of its quadratic under its pull; relations stay as they are."""

    name = "exact"

    def train(self, weights, client, passes, rng, pull=None, part=slice(None)):  # type: ignore[no-untyped-def]
        return minimiser(client, pull), 0.0

    def related(self, state: Related) -> Related:
        return replace(state, omega=fixed_relations()) if bool(state.heard.all()) else state


def fixed_relations() -> Tensor:
    """Of four tasks, three of which push one another away: where each minimised its own part of the penalty with the
    others as they were, all at once, the steps would overshoot.
    """
    rows = torch.tensor([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8], [0.3, 0.1]], dtype=torch.float64)
    return relations(rows, 0.01)


def objective(sent: Tensor, strength: float, p: Tensor) -> float:
    """sum_i f_i + lambda / 2 tr(D P D^T), from w_0 = 0."""
    own = sum((w - b) @ a @ (w - b) / 2 for w, a, b in zip(sent, PROBLEM.curvatures, PROBLEM.optima, strict=True))
    return float(own) + strength / 2 * float((p.float() * (sent @ sent.T)).sum())


@pytest.mark.parametrize("strength", [0.1, 3.0])
def test_with_given_relations_it_falls_to_the_optimum_of_all_tasks_together(strength: float) -> None:
    """A_i (w_i - b_i) + lambda sum_j P_ij w_j = 0, solved at once."""
    p = torch.linalg.inv(fixed_relations()) / 4
    left = torch.block_diag(*PROBLEM.curvatures).double() + strength * torch.kron(
        p.contiguous(), torch.eye(SIZE).double()
    )
    right = torch.cat([a @ b for a, b in zip(PROBLEM.curvatures, PROBLEM.optima, strict=True)]).double()
    truth = torch.linalg.solve(left, right).reshape(4, SIZE).float()
    values = []
    for rounds in (1, 2, 3, 5, 10, 300):
        server, _ = federated(Exact(strength=strength), PROBLEM, rounds)
        values.append(objective(server.tensors()["sent"], strength, p))
    assert all(now <= before + 1e-5 for before, now in pairwise(values))
    torch.testing.assert_close(server.tensors()["sent"], truth, rtol=1e-3, atol=1e-3)


def test_without_strength_clients_train_alone_bit_for_bit() -> None:
    """From the server's first weights, where Local begins at each client's own."""
    method, local = MOCHA(strength=0.0, learning_rate=1e-3), Local(learning_rate=1e-3)
    first = first_message(method, SITES).arrays["centre"]
    federation = Federation(method, SITES, seed=2)
    for _ in range(4):
        federation.step(evaluate=False)
    for site in SITES:
        alone = Point(first)
        for number in range(4):
            rng = Stream((2, "update", number, site.client.index))
            with repeatable(rng):
                alone = local.client_update(alone, site.client, Message(), number, rng).state
        assert torch.equal(federation.server.tensors()["sent"][site.client.index], alone.weights)


def test_the_first_message_is_w_0_with_strength_lambda_and_a_client_alone_is_held_there() -> None:
    method, roster = MOCHA(strength=0.7), roster_of(SITES[:1])
    state = method.server_init(roster)
    first = method.broadcast(state, 0).arrays
    assert torch.equal(first["centre"], roster.initial_weights(0))
    assert first["strength"].tolist() == pytest.approx([0.7])
    sent = first["centre"] + torch.randn(first["centre"].shape, generator=RNG.torch())
    after = method.broadcast(method.server_update(state, {0: Message({"weights": sent})}, roster, RNG), 0).arrays
    torch.testing.assert_close(after["centre"], first["centre"], rtol=0, atol=1e-5)
    assert after["strength"].tolist() == pytest.approx([0.7])


def test_who_was_not_heard_is_related_to_nobody_and_is_forgotten_when_set_aside() -> None:
    method, roster = MOCHA(), roster_of(small_sites(3, models=("mlp",)))
    start = method.server_init(roster)
    draws = torch.randn(3, len(start.weights), generator=RNG.torch())
    replies = {client: Message({"weights": start.weights + draw}) for client, draw in enumerate(draws)}
    two = method.server_update(start, {0: replies[0], 2: replies[2]}, roster, RNG)
    torch.testing.assert_close(two.omega[1], torch.tensor([0.0, 0.5, 0.0]).double())
    torch.testing.assert_close(two.omega[[0, 2]][:, [0, 2]], relations(draws[[0, 2]], 0.01), rtol=1e-4, atol=1e-6)
    assert torch.equal(method.broadcast(two, 1).arrays["centre"], start.weights)
    three = method.server_update(start, replies, roster, RNG)
    forgotten = method.without(three, 1)
    assert all(torch.equal(one, forgotten.tensors()[name]) for name, one in two.tensors().items())


class Learned(MOCHA):
    """Every client goes to the minimum of its quadratic under its pull."""

    name = "learned"

    def train(self, weights, client, passes, rng, pull=None, part=slice(None)):  # type: ignore[no-untyped-def]
        return minimiser(client, pull), 0.0


@pytest.mark.parametrize("strength", [0.02, 0.1, 0.2])
def test_with_learned_relations_tasks_come_to_share_few_directions(strength: float) -> None:
    """At the best Omega the penalty is lambda / (2 m) (sum of D's singular values)^2: with f_i = 1/2 ||w - b_i||^2 each
    singular value of the optima loses lambda / m times the sum of what remains, and directions stay.
    """
    optima = torch.randn(4, SIZE, generator=RNG.torch())
    problem = Problem([torch.eye(SIZE)] * 4, list(optima))
    server, _ = federated(Learned(strength=strength, ridge=1e-4), problem, 200)
    left, values, right = torch.linalg.svd(optima, full_matrices=False)
    share = strength / 4
    remain = values - share * values.sum() / (1 + share * SIZE)
    assert remain.min() > 0.05
    torch.testing.assert_close(server.tensors()["sent"], left @ torch.diag(remain) @ right, rtol=0, atol=0.01)


def test_a_pull_is_what_a_client_is_sent() -> None:
    method, client = MOCHA(strength=2.0), SITES[0].client
    centre = client.initial_weights() + 0.1
    message = Message({"centre": centre, "strength": torch.tensor([3.0])})
    found = method.client_update(Point(client.initial_weights()), client, message, 1, RNG)
    expected, _ = method.train(client.initial_weights(), client, 1, RNG, Pull(centre, 3.0))
    assert torch.equal(found.message.arrays["weights"], expected)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("strength=-1", "strength = -1: Input should be greater than or equal to 0"),
        ("ridge=0", "ridge = 0: Input should be greater than or equal to 0.0001"),
        ("ridge=2", "ridge = 2: Input should be less than or equal to 1"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(setting: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(None, ["method=mocha", f"methods.mocha.{setting}"])
    assert f"methods.mocha.{why}" in str(caught.value)
    assert "\n" not in str(caught.value)
