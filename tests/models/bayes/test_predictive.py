import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import Gaussian, average, entropy, predict, weight_draws
from fedbnn.models.network import FlatNetwork

SHAPE, CLASSES = (6,), 3


def network() -> FlatNetwork:
    return FlatNetwork(lambda: build(ModelSettings("mlp", options={"hidden": (8,)}), SHAPE, CLASSES), seed=0)


def inputs(n: int = 300) -> torch.Tensor:
    return torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(2))


@given(st.floats(-6, 0), st.integers(1, 8), st.integers(0, 2**31))
def test_uncertainty_splits_into_two_parts_that_are_not_negative(rho: float, draws: int, seed: int) -> None:
    net = network()
    posterior = Gaussian.around(net.weights.clone(), rho)
    p = predict(net, posterior, inputs(20), draws, torch.Generator().manual_seed(seed))
    torch.testing.assert_close(p.probs.sum(1), torch.ones(20))
    assert (p.aleatoric >= 0).all()
    assert (p.epistemic >= 0).all()
    assert (p.total <= math.log(CLASSES) + 1e-5).all()
    torch.testing.assert_close(p.total, p.aleatoric + p.epistemic, atol=1e-5, rtol=1e-5)
    assert torch.equal(p.labels, p.probs.argmax(1))


def test_a_plain_network_has_no_epistemic_uncertainty() -> None:
    net, x = network(), inputs()
    p = average(net, iter([net.weights.clone()]), x)
    with torch.no_grad():
        torch.testing.assert_close(p.probs, net(x).softmax(1))
        torch.testing.assert_close(p.logits, net(x))
    assert p.epistemic.max() < 1e-6


def test_mean_probabilities_are_the_average_over_the_draws() -> None:
    net, x = network(), inputs(10)
    posterior = Gaussian.around(net.weights.clone(), -1.0)
    p = predict(net, posterior, x, 5, torch.Generator().manual_seed(4))
    each = []
    for weights in weight_draws(posterior, 5, torch.Generator().manual_seed(4)):
        net.weights.copy_(weights)
        with torch.no_grad():
            each.append(net(x).softmax(1))
    stack = torch.stack(each)
    torch.testing.assert_close(p.probs, stack.mean(0))
    torch.testing.assert_close(p.aleatoric, torch.stack([entropy(one) for one in stack]).mean(0))


def test_draws_have_the_posterior_mean_and_standard_deviation() -> None:
    posterior = Gaussian(torch.tensor([1.0, -2.0, 0.0, 1.0]))
    draws = torch.stack(list(weight_draws(posterior, 20000, torch.Generator().manual_seed(0))))
    torch.testing.assert_close(draws.mean(0), posterior.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(draws.std(0), posterior.sd, atol=0.03, rtol=0)
    assert torch.corrcoef(draws.T)[0, 1].abs() < 0.03


def test_entropy_of_certain_and_uniform_predictions() -> None:
    table = torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(entropy(table), torch.tensor([0.0, math.log(3)]))
