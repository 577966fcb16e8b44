"""Networks on sequences: what they see, and that federations of them learn what only order tells."""

import numpy as np
import pytest
import torch
from torch import nn

import fedbnn
from fedbnn.base.errors import UserError
from fedbnn.data.normalisation import fit_normalisation
from fedbnn.models.architectures import ModelSettings, build, settings_of
from fedbnn.models.network import FlatNetwork
from fedbnn.models.sequences import Steps

TIME, VALUES = 12, 3


def sequences(count, seed):
    """A bump early or late, in one of the values: no mean over time tells which."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=count)
    x = rng.normal(scale=0.3, size=(count, TIME, VALUES))
    at = np.where(labels == 0, rng.integers(0, 4, size=count), rng.integers(8, 12, size=count))
    x[np.arange(count), at, rng.integers(VALUES, size=count)] += 3
    return x.astype(np.float32), labels.astype(np.int64)


@pytest.fixture(scope="module")
def dealt():
    data = fedbnn.Dataset("bumps", *sequences(400, 0), *sequences(200, 1), class_names=("early", "late"))
    partition = fedbnn.PartitionSettings(clients=2, kind="iid", records_per_client=100)
    return fedbnn.federate(data, fedbnn.DataSettings(alignment=60), partition, seed=0)


def test_values_are_scaled_over_time(dealt):
    x = dealt.dataset.x_train[dealt.alignment_indices]
    mean, std = fit_normalisation(x)
    assert mean.shape == std.shape == (VALUES,)
    np.testing.assert_allclose(mean, x.reshape(-1, VALUES).mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dealt.alignment().std((0, 1)), 1.0, rtol=1e-4)


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_a_federation_learns_what_order_tells(name, dealt):
    training = fedbnn.TrainingSettings(warmup_epochs=12, local_epochs=4, batch_size=20)
    sites = fedbnn.make_sites(dealt, [name], training, rounds=2)
    method = fedbnn.FedBNN(head=False, learning_rate=0.01, prior_steps=20, mc_samples=3, network_every=1)
    federation = fedbnn.Federation(method, sites, engine=fedbnn.InProcess())
    federation.run(2)
    found = [one["personal"].scores["own_class_accuracy"] for one in federation.evaluate().values()]
    assert min(found) > 0.85


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_time_has_a_direction(name):
    network = FlatNetwork(lambda: build(ModelSettings(name), (TIME, VALUES), 2), 0)
    x = torch.from_numpy(sequences(5, 0)[0])
    with torch.no_grad():
        assert not torch.allclose(network(x), network(x.flip(1)), atol=1e-4)


def test_steps_are_pieces_of_a_row_and_rows_of_a_picture():
    row = torch.arange(6.0).view(1, 6)
    assert Steps("gru", (6,), 3)(row)[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert Steps("gru", (6,), 0)(row).shape == (1, 6, 1)
    picture = torch.arange(12.0).view(1, 2, 3, 2)
    assert Steps("gru", (2, 3, 2), 0)(picture)[0].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


@pytest.mark.parametrize(
    ("name", "options", "shape", "told"),
    [
        ("gru", {"steps": 4}, (6,), "6 values cannot be cut into steps = 4 equal pieces"),
        ("gru", {"steps": -1}, (6,), "steps = -1"),
        ("gru", {"steps": 5}, (TIME, VALUES), "steps = 5 does not fit records of shape"),
        ("transformer", {"width": 10, "heads": 4}, (6,), "width = 10 must be a multiple of heads = 4"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(name, options, shape, told):
    with pytest.raises(UserError, match=told):
        build(ModelSettings(name, options=options), shape, 2)


def own(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(TIME * VALUES, classes))


def test_a_function_of_ones_own_may_be_given_itself(dealt):
    assert settings_of(own) == ModelSettings(f"{__name__}:own")
    assert settings_of("mlp") == ModelSettings("mlp")
    for hidden in (lambda input_shape, classes: own((), classes), nn.Flatten()):
        with pytest.raises(UserError, match="give a function that stands in a module by itself"):
            fedbnn.make_sites(dealt, [hidden])
