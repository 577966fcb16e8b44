"""Methods on networks of which only a part has a posterior."""

import pytest
import torch

from fedbnn import (
    DataSettings,
    FedAvg,
    FedBNN,
    FedBNNPaper,
    Federation,
    InProcess,
    LocalBNN,
    ModelSettings,
    PartitionSettings,
    TrainingSettings,
    UserError,
    federate,
    load_dataset,
    make_sites,
)
from fedbnn.models.bayesian_part import without_posterior

BAYESIAN = {
    "fedbnn": FedBNN(prior_steps=3, mc_samples=2, network_every=1),
    "fedbnn_paper": FedBNNPaper(prior_steps=3, mc_samples=2),
    "local_bnn": LocalBNN(mc_samples=2),
}


@pytest.fixture(scope="module")
def dealt():
    data = DataSettings(alignment=20)
    return federate(
        load_dataset(data), data, PartitionSettings(clients=2, classes_per_client=3, records_per_class=4), 0
    )


def sites_with(dealt, **settings):
    training = TrainingSettings(local_epochs=1, warmup_epochs=1, batch_size=8)
    return make_sites(dealt, [ModelSettings("mlp", options={"hidden": [8]}, **settings)], training, rounds=1)


def states_after(method, sites):
    engine = InProcess()
    federation = Federation(method, sites, engine=engine)
    federation.run(1)
    return engine._host.states


@pytest.mark.parametrize("method", BAYESIAN.values(), ids=BAYESIAN)
def test_slow_weights_learn_without_spread(method, dealt):
    sites = sites_with(dealt, bayesian="last_layer", rest_rate=0.1)
    known = without_posterior("last_layer", sites[0].client.network.spans, "mlp")
    for index, state in states_after(method, sites).items():
        start = sites[index].client.initial_weights()
        assert torch.equal(state.q.sd == 0, known)
        assert bool((state.q.mean != start)[known].any())
        assert bool(state.q.theta.isfinite().all())


@pytest.mark.parametrize("method", [*BAYESIAN.values(), FedAvg()], ids=[*BAYESIAN, "fedavg"])
def test_frozen_weights_are_no_part_of_a_state(method, dealt):
    sites = sites_with(dealt, bayesian="last_layer")
    size = 8 * 10 + 10
    assert sites[0].weights == size
    for state in states_after(method, sites).values():
        assert len(state.theta if hasattr(state, "theta") else state.weights) in (size, 2 * size)


def test_methods_without_posteriors_refuse_slow_weights(dealt):
    with pytest.raises(UserError, match=r"'fedavg' trains all weights alike: rest_rate = 0\.1 of model 'mlp'"):
        FedAvg().check_client(sites_with(dealt, bayesian="last_layer", rest_rate=0.1)[0].client)


def test_the_architecture_tells_what_is_frozen():
    assert ModelSettings("mlp").architecture == "mlp"
    assert ModelSettings("mlp", bayesian="last_layer").architecture == 'mlp {"bayesian": "last_layer"}'
