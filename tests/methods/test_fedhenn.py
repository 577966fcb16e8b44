"""FedHeNN: what centred kernel alignment is and does not see, and local training as its limit."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedbnn.base.errors import UserError
from fedbnn.base.randomness import Stream
from fedbnn.federation.loop import Federation, roster_of
from fedbnn.federation.message import Message
from fedbnn.methods import FedHeNN, Local
from fedbnn.methods.fedhenn import cka, kernel_of
from fedbnn.models.architectures import ModelSettings
from fedbnn.models.representation import representations_of
from fedbnn.models.training import TrainingSettings
from tests.federation_sample import small_sites, with_client

RNG = Stream((0, "test"))


def drawn(points: int, width: int, seed: int) -> Tensor:
    return torch.randn(points, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


sizes = st.integers(3, 8)


@given(sizes, sizes, sizes, st.integers(0, 999))
def test_alignment_is_that_of_the_features(points: int, one: int, other: int, seed: int) -> None:
    """Kornblith et al. 2019: of centred features ||Y^T X||^2 / (||X^T X|| ||Y^T Y||); from 0 to 1."""
    x, y = drawn(points, one, seed), drawn(points, other, seed + 1)
    a, b = x - x.mean(0), y - y.mean(0)
    wanted = (b.T @ a).square().sum() / ((a.T @ a).norm() * (b.T @ b).norm())
    found = cka(x @ x.T, y @ y.T)
    torch.testing.assert_close(found, wanted)
    assert 0 <= float(found) <= 1 + 1e-9
    torch.testing.assert_close(cka(kernel_of(x), kernel_of(y)), wanted)


@given(sizes, sizes, st.floats(0.01, 100.0), st.integers(0, 999))
def test_rotations_scale_and_place_of_a_representation_do_not_matter(
    points: int, width: int, scale: float, seed: int
) -> None:
    x = drawn(points, width, seed)
    rotation, _ = torch.linalg.qr(drawn(width, width, seed + 1))
    y = scale * x @ rotation + drawn(1, width, seed + 2)
    assert float(cka(x @ x.T, y @ y.T)) == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(kernel_of(x), kernel_of(y), rtol=1e-5, atol=1e-7)


def test_a_representation_that_tells_no_points_apart_gives_no_gradient_that_is_not_a_number() -> None:
    z = torch.ones(5, 3, requires_grad=True)
    other = drawn(5, 4, 0).float()
    apart = 1 - cka(z @ z.T, other @ other.T)
    apart.backward()
    assert apart.item() == 1.0
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert not kernel_of(torch.ones(5, 3)).any()


def test_without_strength_it_is_local_training_bit_for_bit() -> None:
    sites = small_sites(3, batch_size=5)
    held = Federation(FedHeNN(strength=0.0, learning_rate=1e-3), sites)
    alone = Federation(Local(learning_rate=1e-3), sites)
    pulled = Federation(FedHeNN(strength=3.0, learning_rate=1e-3), sites)
    for federation in (held, alone, pulled):
        for _ in range(3):
            federation.step(evaluate=False)
    answers = [[one.predict(c, sites[c].evaluation.x).probs for c in range(3)] for one in (held, alone, pulled)]
    assert all(torch.equal(a, b) for a, b in zip(answers[0], answers[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(answers[2], answers[1], strict=True))


@pytest.mark.parametrize("model", ["mlp", "cnn2", "gru", "transformer"])
def test_a_stronger_pull_brings_the_kernel_nearer(model: str) -> None:
    training = TrainingSettings(local_epochs=25, batch_size=12)
    client = with_client(small_sites(1, models=(model,))[0], training=training).client
    message = Message({"kernel": kernel_of(torch.randn(30, 4, generator=RNG.torch()))})
    found = []
    for strength in (0.0, 10.0):
        method = FedHeNN(strength=strength, learning_rate=3e-3, align_batch=30)
        found.append(method.client_update(method.client_init(client), client, message, 1, RNG).info["cka"])
    assert found[1] > found[0] + 0.1, found


def test_neurons_in_another_order_send_the_same_kernel() -> None:
    training = TrainingSettings(warmup_epochs=0)
    client = with_client(small_sites(1, models=("mlp",))[0], training=training).client
    method, state = FedHeNN(), FedHeNN().client_init(client)
    hidden = 128
    order = torch.randperm(hidden, generator=RNG.torch())
    into, bias, out, last = state.weights.split([64 * hidden, hidden, 10 * hidden, 10])
    parts = into.view(hidden, 64)[order].flatten(), bias[order], out.view(10, hidden)[:, order].flatten(), last
    other = dataclasses.replace(state, weights=torch.cat(parts))
    one, two = (method.client_update(s, client, Message(), 0, RNG).message.arrays["kernel"] for s in (state, other))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    z = representations_of(client.network, state.weights, client.alignment)
    plain = (client.alignment.flatten(1) @ into.view(hidden, 64).T + bias).clamp_min(0)
    torch.testing.assert_close(z, plain, rtol=1e-4, atol=1e-5)


def test_the_server_averages_the_kernels_of_those_who_replied() -> None:
    method, roster = FedHeNN(points=6), roster_of(small_sites(3))
    replies = {c: Message({"kernel": torch.full((6, 6), 0.1 * c)}) for c in (0, 2)}
    state = method.server_update(method.server_init(roster), replies, roster, RNG)
    assert state.kernel is not None
    torch.testing.assert_close(state.kernel, torch.full((6, 6), 0.1))
    assert method.server_update(state, {}, roster, RNG) is state


class Bent(nn.Module):
    """Not what its last linear layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        bent: Tensor = self.layer(x.flatten(1)).sin()
        return bent


def bent(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Bent()


def test_what_does_not_fit_is_refused_before_any_work() -> None:
    roster = dataclasses.replace(roster_of(small_sites(2)), alignment=torch.zeros(1, 1, 8, 8))
    with pytest.raises(UserError, match=r"data\.alignment must be at least 2"):
        FedHeNN().server_init(roster)
    client = dataclasses.replace(small_sites(1)[0].client, model=ModelSettings(f"{__name__}:bent"))
    with pytest.raises(UserError, match=r"does not end in the torch\.nn\.Linear"):
        FedHeNN().check_client(client)
