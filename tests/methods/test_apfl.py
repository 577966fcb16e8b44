"""APFL: between FedAvg and training alone, which are its ends, and a share that goes down the mixture's loss."""

from itertools import pairwise

import pytest
import torch

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.methods import APFL, FedAvg, Local
from fedbnn.methods.apfl import Mixing, new_alpha
from fedbnn.methods.point import Point
from fedbnn.models.training import Records
from fedbnn.runs.config import load_config
from tests.federation_sample import first_message, small_sites, unequal
from tests.quadratic_sample import SCRATCH, SIZE, Problem, Quadratic

RNG = Stream((0, "apfl"))
SITES = unequal(small_sites(3, models=("mlp",), batch_size=5), (12, 7, 3))


@pytest.mark.parametrize("method", [APFL(), APFL(alpha=0.0, alpha_rate=0.0), APFL(alpha=1.0, alpha_rate=3.0)])
def test_what_is_shared_is_fedavg_bit_for_bit(method: APFL) -> None:
    servers = []
    for one in (method, FedAvg()):
        federation = Federation(one, SITES, seed=2, participation=0.7)
        federation.run(3)
        servers.append(federation.server.tensors()["weights"])
    assert torch.equal(*servers)


def test_with_nothing_of_its_own_a_client_has_fedavgs_model() -> None:
    record = Federation(APFL(alpha=0.0, alpha_rate=0.0), SITES, seed=2).run(2)[-1]
    expected = Federation(FedAvg(), SITES, seed=2).run(2)[-1]
    for client, found in record.scores.items():
        assert found["personal"].to_dict()["scores"] == expected.scores[client]["global"].to_dict()["scores"]


def test_with_all_of_its_own_a_client_is_trained_alone_bit_for_bit() -> None:
    """From the server's first weights, where Local begins at each client's own."""
    mixed, local = APFL(alpha=1.0, alpha_rate=0.0, learning_rate=1e-3), Local(learning_rate=1e-3)
    for site in SITES:
        message = first_message(mixed, SITES)
        state, alone = mixed.client_init(site.client), Point(message.arrays["weights"])
        for number in range(3):
            update = mixed.client_update(state, site.client, message, number, RNG.child(number))
            state, message = update.state, Message({"weights": update.message.arrays["weights"] * 1.1})
            alone = local.client_update(alone, site.client, Message(), number, RNG.child(number)).state
        assert torch.equal(state.weights, alone.weights)
        assert torch.equal(mixed.scored(state, site.client, message, RNG)["personal"].weights, alone.weights)


def test_on_a_quadratic_the_share_finds_the_best_mixture() -> None:
    """Of f(m) = 1/2 (m - b)^T A (m - b) along w + alpha (v - w):  alpha = d^T A (b - w) / d^T A d,  d = v - w."""
    problem = Problem.drawn()
    found = []
    for a, b in zip(problem.curvatures, problem.optima, strict=True):
        v, w = b + torch.tensor([0.3, -0.2, 0.1]), torch.zeros(SIZE)
        best = (v - w) @ a @ (b - w) / ((v - w) @ a @ (v - w))
        alpha = torch.tensor([0.1])
        for _ in range(2000):
            alpha = new_alpha(SCRATCH, v, w, alpha, 0.05, Quadratic(a, b))
        torch.testing.assert_close(alpha, best.clamp(0, 1)[None], rtol=1e-3, atol=1e-4)
        found.append(float(best))
    assert any(0.2 < one < 0.98 for one in found)


@pytest.mark.parametrize(("rate", "end"), [(1e6, 1.0), (0.0, 0.4)])
def test_the_share_stays_a_share(rate: float, end: float) -> None:
    problem = Problem.drawn()
    a, b = problem.curvatures[0], problem.optima[0]
    there = new_alpha(SCRATCH, b, torch.zeros(SIZE), torch.tensor([0.4]), rate, Quadratic(a, b))
    assert float(there) == pytest.approx(end)
    away = new_alpha(SCRATCH, torch.zeros(SIZE), b, torch.tensor([0.4]), rate, Quadratic(a, b))
    assert float(away) == pytest.approx(0.0 if rate else end)


def test_it_moves_by_the_gradient_of_the_mixtures_loss() -> None:
    """Against a difference of losses along the line from w to v."""
    client = SITES[0].client
    every = Records(client.train.x, client.train.y)
    w = client.initial_weights()
    v = w + 0.05 * torch.randn(w.shape, generator=RNG.torch())
    losses = []
    for share in (0.399, 0.401):
        client.network.weights.copy_(torch.lerp(w, v, share))
        losses.append(float(every.loss(client.network(every.x).double()).detach()))
    low, high = losses
    moved = new_alpha(client.network, v, w, torch.tensor([0.4]), 0.1, every)
    assert float(0.4 - moved) / 0.1 == pytest.approx((high - low) / 0.002, rel=0.02)


def test_the_share_moves_once_a_round_and_not_before_the_models_differ() -> None:
    method = APFL(alpha_rate=0.01, learning_rate=1e-3)
    message, client = first_message(method, SITES), SITES[0].client
    state, shares = method.client_init(client), [0.5]
    for number in range(4):
        update = method.client_update(state, client, message, number, RNG.child(number))
        state, shares = update.state, [*shares, update.info["alpha"]]
        assert update.info["alpha"] == float(update.state.alpha)
    assert shares[1] == 0.5  # v starts at w
    assert all(one != other for one, other in pairwise(shares[1:]))


def test_the_personal_model_is_the_mixture_with_the_newest_shared_one() -> None:
    method, client = APFL(), SITES[0].client
    message = first_message(method, SITES)
    shared = message.arrays["weights"]
    state = Mixing(shared + 1.0, torch.tensor([0.25]))
    scored = method.scored(state, client, message, RNG)
    torch.testing.assert_close(scored["personal"].weights, shared + 0.25)
    assert torch.equal(scored["global"].weights, shared)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("alpha=1.5", "alpha = 1.5: Input should be less than or equal to 1"),
        ("alpha=-0.5", "alpha = -0.5: Input should be greater than or equal to 0"),
        ("alpha_rate=-1", "alpha_rate = -1: Input should be greater than or equal to 0"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(setting: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(None, ["method=apfl", f"methods.apfl.{setting}"])
    assert f"methods.apfl.{why}" in str(caught.value)
    assert "\n" not in str(caught.value)
