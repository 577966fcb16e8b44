"""FedOpt: the server's step is that of torch's optimisers where they agree, and of the paper's formulas elsewhere."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation
from fedbnn.federation.message import Message
from fedbnn.methods import FedAvg, FedOpt
from fedbnn.methods.fedopt import Adaptive
from tests.federation_sample import small_sites, unequal
from tests.quadratic_sample import Problem

RNG = Stream((0, "test"))
seeds = st.integers(0, 10**6)


def changes(seed: int, count: int = 6) -> Tensor:
    """Of different lengths for different weights."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([1e-3, 0.1, 1.0, 30.0], dtype=torch.float64)
    return scales * torch.randn(count, 4, generator=generator, dtype=torch.float64)


def begun(tau: float) -> Adaptive:
    zeros = torch.zeros(4, dtype=torch.float64)
    return Adaptive(zeros + 1, zeros, zeros + tau**2)


def walked(optimiser: torch.optim.Optimizer, w: Tensor, seed: int) -> Tensor:
    """A change of the clients is a gradient with the other sign."""
    for change in changes(seed):
        w.grad = -change
        optimiser.step()
    return w.detach()


@given(seeds)
def test_adagrad_is_torchs(seed: int) -> None:
    """Which begins at the same v."""
    method, state = FedOpt(optimiser="adagrad", beta1=0.0, server_rate=0.3, tau=0.02), begun(0.02)
    for change in changes(seed):
        state = method.stepped(state, change)
    w = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    plain = torch.optim.Adagrad([w], lr=0.3, initial_accumulator_value=0.02**2, eps=0.02)
    torch.testing.assert_close(state.weights, walked(plain, w, seed))


@given(seeds)
def test_adam_is_torchs_but_for_the_correction_of_the_bias(seed: int) -> None:
    """torch divides m by 1 - beta1^t and v by 1 - beta2^t: as another rate and tau at every step do, from v = 0."""
    beta1, beta2, rate, tau = 0.8, 0.95, 0.3, 0.02
    state = Adaptive(torch.ones(4).double(), torch.zeros(4).double(), torch.zeros(4).double())
    for t, change in enumerate(changes(seed), start=1):
        root = math.sqrt(1 - beta2**t)
        method = FedOpt(beta1=beta1, beta2=beta2, server_rate=rate * root / (1 - beta1**t), tau=tau * root)
        state = method.stepped(state, change)
    w = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    plain = torch.optim.Adam([w], lr=rate, betas=(beta1, beta2), eps=tau)
    torch.testing.assert_close(state.weights, walked(plain, w, seed))


@pytest.mark.parametrize("optimiser", ["adam", "yogi", "adagrad"])
@given(seed=seeds)
def test_the_papers_formulas_weight_by_weight(optimiser: str, seed: int) -> None:
    method = FedOpt(optimiser=optimiser, beta1=0.7, beta2=0.9, server_rate=0.2, tau=0.05)
    state = begun(0.05)
    for change in changes(seed):
        state = method.stepped(state, change)
    for k in range(4):
        w, m, v = 1.0, 0.0, 0.05**2
        for d in changes(seed)[:, k].tolist():
            m = 0.7 * m + 0.3 * d
            if optimiser == "adam":
                v = 0.9 * v + 0.1 * d**2
            elif optimiser == "yogi":
                v = v - 0.1 * d**2 if v > d**2 else v + 0.1 * d**2
            else:
                v = v + d**2
            w += 0.2 * m / (math.sqrt(v) + 0.05)
        assert (w, m, v) == pytest.approx((float(state.weights[k]), float(state.m[k]), float(state.v[k])))


@given(seeds)
def test_yogis_v_moves_slowly_and_stays_above_zero(seed: int) -> None:
    """Unlike Adam's, it changes by no more than (1 - beta2) D^2, however large it is."""
    method, state = FedOpt(optimiser="yogi", beta2=0.6), begun(1e-3)
    for change in changes(seed, 30):
        after = method.stepped(state, change)
        assert ((after.v - state.v).abs() <= 0.4 * change.square() + 1e-12 * state.v).all()
        assert (after.v > 0).all()
        state = after


def test_the_gradient_is_the_mean_change_by_records() -> None:
    method, roster = FedOpt(server_rate=0.5, beta1=0.25, beta2=0.5, tau=0.1), Problem.drawn(3).roster
    state = method.server_init(roster)
    assert state.v.eq(torch.tensor(0.1**2)).all()
    sent = {0: (3.0, [1.0, 0.0, -2.0]), 2: (1.0, [5.0, 4.0, 2.0])}
    replies = {i: Message({"weights": torch.tensor(w), "records": torch.tensor([n])}) for i, (n, w) in sent.items()}
    after = method.server_update(state, replies, roster, RNG)
    d = torch.tensor([2.0, 1.0, -1.0])  # from zero
    torch.testing.assert_close(after.m, 0.75 * d)
    torch.testing.assert_close(after.v, 0.5 * 0.01 + 0.5 * d**2)
    torch.testing.assert_close(after.weights, 0.5 * 0.75 * d / ((0.005 + 0.5 * d**2).sqrt() + 0.1))


def test_clients_train_as_in_fedavg_and_a_huge_tau_makes_the_server_fedavgs() -> None:
    """w + server_rate D / (sqrt(v) + tau), with v = tau^2 and server_rate = 2 tau, is w + D."""
    sites = unequal(small_sites(3, models=("mlp",), batch_size=5), (12, 7, 3))
    one = Federation(FedAvg(learning_rate=2e-3), sites, seed=2)
    other = Federation(
        FedOpt(learning_rate=2e-3, optimiser="adagrad", beta1=0.0, tau=1e3, server_rate=2e3), sites, seed=2
    )
    one.run(2)
    other.run(2)
    start = FedOpt().server_init(one._server.roster).weights
    found, expected = (federation.server.tensors()["weights"] for federation in (other, one))
    assert float((found - expected).norm() / (expected - start).norm()) < 1e-3
    adam = Federation(FedOpt(learning_rate=2e-3), sites, seed=2)
    adam.run(2)
    assert float((adam.server.tensors()["weights"] - expected).norm() / (expected - start).norm()) > 0.1
