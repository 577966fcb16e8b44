"""PVI: exact for conjugate models, plain variational inference with one client, and factors that multiply to q."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.methods import PVI
from fedbnn.methods.pvi import Joint, cavity, gaussian
from tests.federation_sample import small_sites
from tests.plain_torch import MeanField, PlainClient, bayes_by_backprop, epoch_order, shared_noise

RNG = Stream((0, "pvi"))


@pytest.fixture(scope="module")
def roster() -> Roster:
    return roster_of(small_sites(3, models=("mlp",)))


@given(seed=st.integers(0, 1000), damping=st.floats(0.05, 1.0), rounds=st.integers(1, 4))
def test_with_gaussian_likelihoods_it_finds_the_exact_posterior(
    roster: Roster, seed: int, damping: float, rounds: int
) -> None:
    """Each client's fit is exact: cavity times likelihood. (1 - damping)^rounds of all likelihoods is still missing."""
    method, normal = PVI(damping=damping), torch.Generator().manual_seed(seed)
    state = method.server_init(roster)
    size = len(state.mean)
    precisions = 0.1 + 40 * torch.rand(3, size, generator=normal)  # of the likelihoods
    shifts = 5 * torch.randn(3, size, generator=normal)
    prior, w_0 = state.precision, state.mean
    factors = torch.zeros(3, 2, size)
    for _ in range(rounds):
        replies, q = {}, torch.stack([state.precision, state.precision * state.mean])
        for client in range(3):
            m, p = cavity(state.mean, state.precision, (factors[client, 0], factors[client, 1]), method.floor)
            fitted = torch.stack([p + precisions[client], p * m + shifts[client]])
            change = damping * (fitted - q)
            factors[client] += change
            replies[client] = Message({"precision": change[0], "shift": change[1]})
        state = method.server_update(state, replies, roster, RNG)
    share = 1 - (1 - damping) ** rounds
    exact = prior + share * precisions.sum(0)
    torch.testing.assert_close(state.precision, exact, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(state.mean, (prior * w_0 + share * shifts.sum(0)) / exact, rtol=1e-3, atol=1e-4)
    assert state.taken.tolist() == [rounds] * 3


def test_with_one_client_it_is_plain_variational_inference() -> None:
    """Twice: in the second round the cavity is the prior again, and the fit goes on where the first one ended."""
    site = small_sites(1, models=("mlp",), batch_size=5)[0]
    client, roster, method = site.client, roster_of([site]), PVI(kl_weight=1.0, initial_rho=-3.0)
    server, state = method.server_init(roster), method.client_init(client)
    plain, prior_mean = PlainClient.of(client), server.mean
    q = MeanField.of(gaussian(server.mean, torch.full_like(server.mean, 1e9)).theta, plain.module)
    prior = MeanField.of(gaussian(server.mean, server.precision).theta, plain.module).fixed()
    for number in range(2):
        update = method.client_update(state, client, method.broadcast(server, 0), number, RNG)
        state, server = update.state, method.server_update(server, {0: update.message}, roster, RNG)
        q.rho = [r.detach().clamp_max(-3.0) if number else torch.full_like(r, -3.0) for r in q.rho]
        q.mu = [m.detach() for m in q.mu]
        order = epoch_order(len(plain.x), plain.passes(number), plain.batch, RNG.child("order").torch())
        noise = shared_noise(RNG.child("weights").torch(), plain.module)
        bayes_by_backprop(plain.module, q, plain.x, plain.y, order, noise, method.learning_rate, prior, 1.0)
        mean, rho = q.theta.chunk(2)
        live = mean != prior_mean  # of weights that no record says anything about, Adam moves what rounding leaves
        assert live.float().mean() > 0.5
        moved, found = mean - prior_mean, gaussian(server.mean, server.precision)
        assert (server.mean - mean)[live].norm() < (1e-2 if number else 1e-4) * moved.norm()
        assert (found.rho - rho)[live].norm() < (1e-2 if number else 1e-3) * (rho + 3)[live].norm()


def turn(method: PVI, sites: Any, server: Joint, states: Any, who: tuple[int, ...], number: int) -> dict[int, Message]:
    replies = {}
    for i in who:
        update = method.client_update(states[i], sites[i].client, method.broadcast(server, i), number, RNG.child(i))
        states[i], replies[i] = update.state, update.message
    return replies


def test_q_is_the_prior_times_all_factors_also_where_replies_got_lost() -> None:
    sites = small_sites(3, models=("mlp",))
    method, roster = PVI(), roster_of(sites)
    server = prior = method.server_init(roster)
    states = [method.client_init(site.client) for site in sites]
    for number, (who, lost) in enumerate([((0, 1, 2), 1), ((0, 1), 0), ((1, 2), 9), ((0, 2), 9)]):
        replies = turn(method, sites, server, states, who, number)
        heard = {i: reply for i, reply in replies.items() if i != lost}
        server = method.server_update(server, heard, roster, RNG)
    turn(method, sites, server, states, (0, 1, 2), 4)  # all hear what was taken in
    assert server.taken.tolist() == [2, 2, 3]
    precision = prior.precision + sum(state.precision for state in states)
    torch.testing.assert_close(server.precision, precision, rtol=1e-4, atol=1e-2)
    shift = prior.precision * prior.mean + sum(state.shift for state in states)
    torch.testing.assert_close(server.precision * server.mean, shift, rtol=1e-3, atol=0.5)
    assert precision.max() > 3 * prior.precision.max()


def test_a_change_counts_only_where_the_server_took_it_in() -> None:
    sites = small_sites(2, models=("mlp",), batch_size=5)
    method, client, roster = PVI(kl_weight=1.0), sites[0].client, roster_of(sites)
    server, state = method.server_init(roster), method.client_init(client)
    message = method.broadcast(server, 0)
    first = method.client_update(state, client, message, 1, RNG)
    again = method.client_update(first.state, client, message, 1, RNG)  # the first reply got lost
    assert torch.equal(again.message.arrays["shift"], first.message.arrays["shift"])
    taken = method.broadcast(method.server_update(server, {0: first.message}, roster, RNG), 0)
    second = method.client_update(first.state, client, taken, 1, RNG)
    assert torch.equal(second.state.precision, first.message.arrays["precision"])
    deaf = method.client_update(first.state, client, Message({**taken.arrays, "taken": torch.zeros(1)}), 1, RNG)
    assert torch.equal(deaf.state.precision, torch.zeros_like(deaf.state.precision))
    assert not torch.equal(second.message.arrays["shift"], deaf.message.arrays["shift"])


@pytest.mark.parametrize(("precision", "shift"), [(-1e6, 0.0), (1e6, 0.0), (-11.0, 1e6)])
def test_what_is_no_gaussian_any_more_stays_what_it_was(roster: Roster, precision: float, shift: float) -> None:
    method = PVI()
    state = method.server_init(roster)
    full = torch.full_like(state.mean, precision), torch.full_like(state.mean, shift)
    after = method.server_update(state, {1: Message({"precision": full[0], "shift": full[1]})}, roster, RNG)
    assert torch.equal(after.mean, state.mean)
    assert torch.equal(after.precision, state.precision)


def test_the_damping_is_one_over_the_clients_unless_it_is_set() -> None:
    sites = small_sites(4, models=("mlp",))
    client = dataclasses.replace(sites[0].client, clients=4)
    sent = []
    for damping in (0.0, 0.25, 1.0):
        method = PVI(damping=damping)
        message = method.broadcast(method.server_init(roster_of(sites)), 0)
        sent.append(method.client_update(method.client_init(client), client, message, 0, RNG).message.arrays["shift"])
    assert torch.equal(sent[0], sent[1])
    torch.testing.assert_close(4 * sent[0], sent[2])
