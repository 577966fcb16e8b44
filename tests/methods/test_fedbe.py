"""FedBE: the Gaussian over clients, the ensemble and its distillation once more in plain torch, and its limits."""

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.federation.parties import Roster
from fedbnn.methods import FedBE, Local
from fedbnn.methods.fedbe import moments
from fedbnn.models.architectures import build
from tests.federation_sample import small_sites
from tests.plain_torch import cross_entropy, default_layout, flat, outputs, step_order, to_module

RNG = Stream((0, "fedbe"))
COUNTS = (5.0, 20.0, 11.0)


@pytest.fixture(scope="module")
def roster() -> Roster:
    return roster_of(small_sites(3, models=("cnn2",)))


def replies_of(roster: Roster, counts: tuple[float, ...] = COUNTS) -> dict[int, Message]:
    normal, start = RNG.child("replies").torch(), roster.initial_weights(0)
    return {
        i: Message(
            {
                "weights": start + 0.1 * torch.randn(start.shape, generator=normal),
                "records": torch.tensor([n]),
            }
        )
        for i, n in enumerate(counts)
    }


def plain_members(replies: Mapping[int, Message], draws: int) -> list[Tensor]:
    """The mean, the clients, and the draws."""
    share = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    weights = torch.stack([reply.arrays["weights"].double() for reply in replies.values()])
    mean = share @ weights
    sd = (share @ (weights - mean) ** 2).sqrt()
    generator = RNG.child("draws").torch()
    noise = [torch.empty(len(mean)).normal_(generator=generator) for _ in range(draws)]
    return [one.float() for one in (mean, *weights, *(mean + sd * e for e in noise))]


def plain_student(method: FedBE, roster: Roster, replies: Mapping[int, Message]) -> Tensor:
    module = build(roster.models[0], tuple(roster.alignment.shape[1:]), roster.classes)
    x, members = default_layout(roster.alignment), plain_members(replies, method.draws)
    target = torch.stack([outputs(to_module(w, module), x).softmax(1) for w in members]).mean(0)
    to_module(members[0], module).train()
    adam, swa = torch.optim.Adam(module.parameters(), lr=method.distill_learning_rate), AveragedModel(module)
    order = step_order(len(x), method.distill_steps, method.distill_batch, RNG.child("distil", 0).torch())
    for number, index in enumerate(order):
        adam.zero_grad()
        cross_entropy(module(x[index]), target[index]).backward()
        adam.step()
        if number >= len(order) - max(1, round(method.averaged * len(order))):
            swa.update_parameters(module)
    return flat(swa.module.parameters())


@pytest.mark.parametrize("averaged", [0.0, 0.5, 1.0])
def test_the_servers_turn_is_what_plain_torch_makes_of_it(roster: Roster, averaged: float) -> None:
    method, replies = FedBE(distill_steps=6, distill_batch=16, draws=4, averaged=averaged), replies_of(roster)
    found = method.server_update(method.server_init(roster), replies, roster, RNG).of(0)
    expected, start = plain_student(method, roster, replies), plain_members(replies, 0)[0]
    assert (found - expected).norm() < 1e-4 * (expected - start).norm()
    for wrong in (FedBE(distill_steps=6, distill_batch=16, draws=3, averaged=averaged), FedBE(draws=4)):
        other = plain_student(wrong, roster, replies)
        assert (found - other).norm() > 1e-2 * (expected - start).norm()


@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=6), st.integers(0, 1000))
def test_the_gaussian_has_the_clients_moments(powers: list[float], seed: int) -> None:
    share = torch.tensor(powers, dtype=torch.float64) / sum(powers)
    weights = torch.randn(len(powers), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mean, sd = moments(weights, share)
    torch.testing.assert_close(mean, (share[:, None] * weights).sum(0))
    torch.testing.assert_close(sd.square(), (share[:, None] * weights**2).sum(0) - mean**2)


def test_with_one_client_it_is_local_training_bit_for_bit() -> None:
    """One client has no spread: all members are itself, and distillation cannot come nearer to them."""
    states = []
    for method in (FedBE(learning_rate=1e-3, distill_steps=5), Local(learning_rate=1e-3)):
        federation = Federation(method, small_sites(1, models=("mlp",), batch_size=5))
        federation.run(2)
        states.append(federation)
    site = small_sites(1, models=("mlp",))[0]
    one, other = (federation.predict(0, site.evaluation.x).probs for federation in states)
    assert torch.equal(one, other)


def test_who_has_no_records_is_no_member(roster: Roster) -> None:
    method = FedBE(distill_steps=3, draws=2)
    state, replies = method.server_init(roster), replies_of(roster, (5.0, 0.0, 11.0))
    both = {i: replies[i] for i in (0, 2)}
    found, expected = (method.server_update(state, some, roster, RNG) for some in (replies, both))
    assert torch.equal(found.weights, expected.weights)
    none = method.server_update(state, replies_of(roster, (0.0, 0.0, 0.0)), roster, RNG)
    assert torch.equal(none.weights, state.weights)


def test_mixed_architectures_are_refused() -> None:
    with pytest.raises(UserError, match="method 'fedbe' averages weights"):
        FedBE().server_init(roster_of(small_sites(2, models=("mlp", "cnn2"))))
