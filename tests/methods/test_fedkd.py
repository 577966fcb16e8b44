"""FedKD: its weights in closed form, training alone and FedAvg as its limit, FML where losses do not differ."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.base.randomness import Stream
from fedbnn.methods import FML, FedAvg, FedKD, Local
from fedbnn.models.architectures import ModelSettings
from tests.federation_sample import first_message, small_sites, with_client

RNG = Stream((0, "test"))
positive = st.floats(0.01, 10.0)


@given(positive, positive, positive, positive, st.floats(0.0, 5.0))
def test_the_weight_is_one_over_both_cross_entropies(a: float, b: float, c: float, d: float, strength: float) -> None:
    own, own_kl, sent, sent_kl = (torch.tensor(one, dtype=torch.float64) for one in (a, b, c, d))
    first, second = FedKD(strength=strength).losses(own, own_kl, sent, sent_kl)
    assert float(first) == pytest.approx(a + strength * b / (a + c))
    assert float(second) == pytest.approx(c + strength * d / (a + c))


def test_the_weight_is_a_constant_to_the_gradient_and_stays_finite() -> None:
    parts = [torch.tensor(one, requires_grad=True) for one in (0.5, 2.0, 1.5, 3.0)]
    torch.stack(FedKD(strength=4.0).losses(*parts)).sum().backward()
    assert [float(part.grad) for part in parts if part.grad is not None] == [1.0, 2.0, 1.0, 2.0]
    sure = torch.stack(FedKD().losses(torch.tensor(0.0), torch.tensor(0.1), torch.tensor(0.0), torch.tensor(0.1)))
    assert sure.isfinite().all()


def test_without_distillation_it_is_training_alone_beside_fedavg_bit_for_bit() -> None:
    sites = small_sites(2, models=("mlp",), batch_size=5)
    client = sites[0].client
    method, message = FedKD(strength=0.0, learning_rate=1e-3), first_message(FedKD(), sites)
    update = method.client_update(method.client_init(client), client, message, 1, RNG)
    local, fedavg = Local(learning_rate=1e-3), FedAvg(learning_rate=1e-3)
    alone = local.client_update(local.client_init(client), client, message, 1, RNG).state.weights
    assert update.state.weights is not None
    assert torch.equal(update.state.weights, alone)
    other = with_client(sites[0], model=ModelSettings("cnn2")).client
    sent = fedavg.client_update(fedavg.client_init(other), other, message, 1, RNG).message
    assert torch.equal(update.message.arrays["weights"], sent.arrays["weights"])


def test_the_first_step_is_that_of_fml_with_the_same_ratio() -> None:
    """One step of Adam looks at the direction of the gradient only: FML with alpha : 1 - alpha = 1 : weight."""
    site = small_sites(1, models=("mlp",), batch_size=12)[0]
    client, method = site.client, FedKD(strength=2.0)
    message, state = first_message(method, [site]), method.client_init(client)
    with torch.no_grad():
        client.network.weights.copy_(client.initial_weights())
        messenger = method.messenger_network(client)
        messenger.weights.copy_(message.arrays["weights"])
        total = float(client.train.loss(client.network(client.train.x)) + client.train.loss(messenger(client.train.x)))
    alpha = 1 / (1 + 2.0 / total)
    fml = FML(alpha=alpha, beta=alpha)
    one, other = (m.client_update(state, client, message, 1, RNG) for m in (method, fml))
    assert one.state.weights is not None
    assert other.state.weights is not None
    torch.testing.assert_close(one.state.weights, other.state.weights, rtol=1e-3, atol=2e-6)
    torch.testing.assert_close(one.message.arrays["weights"], other.message.arrays["weights"], rtol=1e-3, atol=2e-6)
