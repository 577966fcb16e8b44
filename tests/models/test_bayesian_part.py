"""A posterior over some of a network's weights: what is left out is frozen, or learns slowly and without spread."""

import pytest
import torch
from torch import nn

from fedbnn.base.errors import UserError
from fedbnn.models.architectures import ModelSettings, build
from fedbnn.models.bayes import Anchor, Gaussian, VariationalStep, fit, kl_divergence
from fedbnn.models.bayesian_part import names_of, without_posterior
from fedbnn.models.network import FlatNetwork
from fedbnn.models.training import Records, epochs, fit_point

SHAPE, CLASSES = (6,), 3


def records(count=40):
    chance = torch.Generator().manual_seed(5)
    return Records(torch.randn(count, *SHAPE, generator=chance), torch.randint(0, CLASSES, (count,), generator=chance))


def network(seed=2, **settings):
    model = ModelSettings("mlp", options={"hidden": [5]}, **settings)
    return FlatNetwork(lambda: build(model, SHAPE, CLASSES), seed)


def trained(net, start, data, **more):
    batches = epochs(data, 3, 8, torch.Generator().manual_seed(1))
    chance = torch.Generator().manual_seed(4)
    anchor = Anchor(Gaussian.isotropic(net.size, 0.3), 0.01)
    return fit(net, start, batches, learning_rate=0.01, generator=chance, anchor=anchor, **more)[0]


def slow_start(net, names):
    start = Gaussian.around(net.weights.clone(), -3.0)
    return start.known_at(without_posterior(names, net.spans, "mlp"))


def test_a_frozen_body_under_a_last_layer_is_logistic_regression_on_its_features():
    whole = network(bayesian="last_layer")
    body = whole.module[:-1]
    data = records()
    with torch.no_grad():
        features = Records(body(data.x), data.y)
    alone = FlatNetwork(lambda: nn.Linear(5, CLASSES), 0)
    assert list(whole.spans) == ["3.weight", "3.bias"]
    start = Gaussian.around(whole.weights.clone(), -3.0)
    ours, regression = trained(whole, start, data), trained(alone, start, features)
    torch.testing.assert_close(ours.theta, regression.theta, rtol=1e-5, atol=1e-6)
    assert not torch.equal(ours.theta, start.theta)


def test_known_weights_stay_known_and_have_no_divergence():
    net = network(bayesian=["3"], rest_rate=0.5)
    q = trained(net, slow_start(net, ["3"]), records(), rest_rate=0.5)
    known = without_posterior(["3"], net.spans, "mlp")
    assert torch.equal(q.sd == 0, known)
    prior = Gaussian.isotropic(net.size, 0.3)
    part = [Gaussian(torch.cat([one.mean[~known], one.rho[~known]])) for one in (q, prior)]
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(*part))
    assert torch.isfinite(q.theta).all()


def test_a_rate_of_zero_in_the_buffer_is_a_frozen_body():
    slow, frozen = network(), network(bayesian="last_layer")
    still = trained(slow, slow_start(slow, "last_layer"), records(), rest_rate=0.0)
    known = without_posterior("last_layer", slow.spans, "mlp")
    assert torch.equal(still.mean[known], network().weights[known])
    assert torch.equal(network().weights[~known], frozen.weights)


def test_a_step_of_a_known_weight_is_adams_shortened_and_without_a_prior():
    net, data, rate = network(), records(8), 0.25
    start = slow_start(net, ["1", "3"]).known_at(torch.ones(net.size, dtype=torch.bool))
    prior = Gaussian.isotropic(net.size, 0.3)
    step = VariationalStep(net, start, Anchor(prior, 5.0), 0.01, torch.Generator().manual_seed(0), rest_rate=rate)
    step(data)
    plain, _ = fit_point(network(), start.mean, iter([data]), learning_rate=0.01, weight_decay=0.0)
    torch.testing.assert_close(step.mu - start.mean, rate * (plain - start.mean), rtol=1e-3, atol=1e-7)


def test_weights_with_a_posterior_move_as_if_the_others_were_constants():
    data, known = records(8), without_posterior("last_layer", network().spans, "mlp")
    anchor = Anchor(Gaussian.isotropic(network().size, 0.3), 0.1)
    one, other = network(), network()
    partly = VariationalStep(one, slow_start(one, "last_layer"), anchor, 0.01, torch.Generator().manual_seed(0))
    # The same with a spread that is not nothing, yet too small to matter.
    start = slow_start(other, "last_layer")
    start = Gaussian(torch.cat([start.mean, torch.where(known, -30.0, start.rho)]))
    fully = VariationalStep(other, start, anchor, 0.01, torch.Generator().manual_seed(0))
    partly(data)
    fully(data)
    torch.testing.assert_close(partly.mu[~known], fully.mu[~known], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(partly.rho[~known], fully.rho[~known], rtol=1e-5, atol=1e-7)


def test_names_stand_for_layers_and_parameters():
    known = ["body.0.weight", "body.0.bias", "body.1.weight", "head.weight", "head.bias"]
    assert names_of("all", known, "m") == set(known)
    assert names_of("last_layer", known, "m") == {"head.weight", "head.bias"}
    assert names_of(["body.0", "head.bias"], known, "m") == {"body.0.weight", "body.0.bias", "head.bias"}


@pytest.mark.parametrize(
    ("names", "told"),
    [(["haed"], "bayesian names 'haed', and there is no such trainable layer or parameter"), ([], "names no layer")],
)
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_names_that_nothing_has_are_refused_in_one_line(names, told, rate):
    with pytest.raises(UserError, match=told) as error:
        network(bayesian=names, rest_rate=rate)
    assert "\n" not in str(error.value)


class Normalised(nn.Module):
    """A body with running statistics and dropout, and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(*SHAPE, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def test_running_statistics_of_frozen_layers_stand_still():
    net = FlatNetwork(frozen_below, 0)
    before = {name: value.clone() for name, value in net.module.body.state_dict().items()}
    data = records()
    with torch.no_grad():
        net.module.eval()
        expected = net(data.x)
        net.train()
        assert torch.equal(net(data.x), expected)
    fit_point(net, net.weights.clone(), epochs(data, 1, 8, torch.Generator()), learning_rate=0.1, weight_decay=0.0)
    assert all(torch.equal(value, before[name]) for name, value in net.module.body.state_dict().items())


def frozen_below():
    module = Normalised()
    module.body.requires_grad_(False)
    return module


def test_running_statistics_of_layers_that_train_are_refused():
    with pytest.raises(UserError, match=r"layer 'body\.1' \(BatchNorm1d\) keeps running statistics"):
        FlatNetwork(Normalised, 0)
